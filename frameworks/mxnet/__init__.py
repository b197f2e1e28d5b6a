"""BytePS for MXNet.

    import byteps.mxnet as bps

    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 1e-3})

Start it with `bpslaunch --workers 2 -- python train.py`; examples/mxnet/digits.py is a whole one.
"""

from byteps import shared as _shared
from byteps.mxnet.allreduce import allreduce, allreduce_, grouped_allreduce, grouped_allreduce_
from byteps.mxnet.collectives import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
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
from byteps.objects import allgather_object
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...

__all__ = [
    *_shared.__all__,
    "BytePS",
    "Compression",
    "Dist_BytePS",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "push_pull",
    "push_pull_inplace",
    "reducescatter",
]
