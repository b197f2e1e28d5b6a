"""BytePS for MXNet.

    import byteps.mxnet as bps

    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 1e-3})

Start it with `bpslaunch --workers 2 -- python train.py`; examples/mxnet/digits.py is a whole one.
"""

import byteps as _byteps
from byteps import *  # noqa: F403 - what all frameworks share: init, rank, size, the errors, the reductions ...
from byteps import __version__
from byteps.horovod_basics import init, join
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
from byteps.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    *(name for name in _byteps.__all__ if name not in ("init", "join")),
    "BytePS",
    "Compression",
    "Dist_BytePS",
    "DistributedOptimizer",
    "DistributedTrainer",
    "ProcessSet",
    "__version__",
    "add_process_set",
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
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "join",
    "push_pull",
    "push_pull_inplace",
    "reducescatter",
    "remove_process_set",
]
