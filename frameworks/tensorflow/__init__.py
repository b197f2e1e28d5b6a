"""BytePS for TensorFlow.

    import byteps.tensorflow as bps

    bps.init()
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = ...
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    bps.broadcast_variables(model.variables, root_rank=0)       # once, behind the first step

Start it with `bpslaunch --workers 2 -- python train.py`; examples/tensorflow/digits.py is a whole one. Models that are
trained with fit() take byteps.keras.
"""

from typing import Any as _Any

from byteps import shared as _shared
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...
from byteps.tensorflow import distribute, elastic
from byteps.tensorflow.allgather import allgather, grouped_allgather
from byteps.tensorflow.allreduce import allreduce, broadcast_, grouped_allreduce
from byteps.tensorflow.alltoall import alltoall
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from byteps.tensorflow.ops import broadcast, grouped_push_pull, push_pull
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.rank_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from byteps.tensorflow.reducescatter import grouped_reducescatter, reducescatter
from byteps.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from byteps.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)


def __getattr__(name: str) -> _Any:
    """SyncBatchNormalization brings Keras along, which takes seconds."""
    if name == "SyncBatchNormalization":
        from byteps.tensorflow.keras import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    *(name for name in _shared.__all__ if name != "broadcast_object"),
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405 - by __getattr__
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "distribute",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_push_pull",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "push_pull",
    "rank_op",
    "reducescatter",
    "size_op",
]
