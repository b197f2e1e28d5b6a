"""BytePS for JAX.

    import byteps.jax as bps

    bps.init()
    params = bps.broadcast_parameters(params, root_rank=0)
    optimizer = bps.DistributedOptimizer(optax.adam(1e-3))

Start it with `bpslaunch --workers 2 -- python train.py`; examples/jax/digits.py is a whole one.
"""

from byteps import shared as _shared
from byteps.jax.allreduce import allreduce
from byteps.jax.collectives import allgather, alltoall, reducescatter
from byteps.jax.compression import Compression
from byteps.jax.functions import broadcast_optimizer_state, broadcast_parameters
from byteps.jax.ops import broadcast, push_pull
from byteps.jax.optimizer import DistributedOptimizer
from byteps.objects import allgather_object
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...

__all__ = [
    *_shared.__all__,
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "push_pull",
    "reducescatter",
]
