"""BytePS for MXNet.

    import byteps.mxnet as bps

    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 1e-3})

Start it with `bpslaunch --workers 2 -- python train.py`; examples/mxnet/digits.py is a whole one.
"""

import byteps as _byteps
from byteps import *  # noqa: F403 - what all frameworks share: init, rank, size, the errors, the reductions ...
from byteps import __version__
from byteps.mxnet.compression import Compression
from byteps.mxnet.functions import broadcast_parameters
from byteps.mxnet.kvstore import BytePS, Dist_BytePS
from byteps.mxnet.ops import (
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    push_pull,
    push_pull_inplace,
)
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.trainer import DistributedTrainer

__all__ = [
    *_byteps.__all__,
    "BytePS",
    "Compression",
    "Dist_BytePS",
    "DistributedOptimizer",
    "DistributedTrainer",
    "__version__",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "push_pull",
    "push_pull_inplace",
]
