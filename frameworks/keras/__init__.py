"""BytePS for Keras: Keras 3 on TensorFlow, JAX and PyTorch, and tf_keras.

    import byteps.keras as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(1e-3 * bps.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `bpslaunch --workers 2 -- python train.py`; examples/keras/digits.py is a whole one.
"""

import byteps as _byteps
from byteps import *  # noqa: F403 - what all frameworks share: init, rank, size, the errors, the reductions ...
from byteps import __version__
from byteps.horovod_basics import init, join
from byteps.keras import callbacks, elastic
from byteps.keras.compression import Compression
from byteps.keras.models import load_model
from byteps.keras.optimizer import DistributedOptimizer
from byteps.keras.values import allgather, allreduce, broadcast, broadcast_global_variables, push_pull, reducescatter
from byteps.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    *(name for name in _byteps.__all__ if name not in ("init", "join")),
    "Compression",
    "DistributedOptimizer",
    "__version__",
    "remove_process_set",
    "join",
    "init",
    "global_process_set",
    "add_process_set",
    "ProcessSet",
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
