"""BytePS for JAX.

    import byteps.jax as bps

    bps.init()
    params = bps.broadcast_parameters(params, root_rank=0)
    optimizer = bps.DistributedOptimizer(optax.adam(1e-3))

Start it with `bpslaunch --workers 2 -- python train.py`; examples/jax/digits.py is a whole one.
"""

import byteps as _byteps
from byteps import *  # noqa: F403 - what all frameworks share: init, rank, size, the errors, the reductions ...
from byteps import __version__
from byteps.horovod_basics import init, join
from byteps.jax.allreduce import allreduce
from byteps.jax.collectives import allgather, alltoall, reducescatter
from byteps.jax.compression import Compression
from byteps.jax.functions import broadcast_optimizer_state, broadcast_parameters
from byteps.jax.ops import broadcast, push_pull
from byteps.jax.optimizer import DistributedOptimizer
from byteps.objects import allgather_object
from byteps.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    *(name for name in _byteps.__all__ if name not in ("init", "join")),
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "init",
    "join",
    "push_pull",
    "reducescatter",
    "remove_process_set",
]
