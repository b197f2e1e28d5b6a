"""BytePS for Keras: Keras 3 on TensorFlow, JAX and PyTorch, and tf_keras.

    import byteps.keras as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(1e-3 * bps.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `bpslaunch --workers 2 -- python train.py`; examples/keras/digits.py is a whole one.
"""

from byteps import shared as _shared
from byteps.keras import callbacks, elastic
from byteps.keras.compression import Compression
from byteps.keras.models import load_model
from byteps.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from byteps.keras.sync_batch_norm import layer_of as _layer_of
from byteps.keras.values import allgather, allreduce, broadcast, broadcast_global_variables, push_pull, reducescatter
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...

SyncBatchNormalization = _layer_of()

__all__ = [
    *_shared.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "push_pull",
    "reducescatter",
]
