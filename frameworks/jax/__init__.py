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
from byteps.jax.compression import Compression
from byteps.jax.functions import broadcast_optimizer_state, broadcast_parameters
from byteps.jax.ops import broadcast, push_pull
from byteps.jax.optimizer import DistributedOptimizer

__all__ = [
    *_byteps.__all__,
    "Compression",
    "DistributedOptimizer",
    "__version__",
    "broadcast",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "push_pull",
]
