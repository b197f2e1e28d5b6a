"""Stands in for horovod.tensorflow: the same names and arguments, carried by BytePS.

import byteps.horovod.tensorflow as hvd
"""

from __future__ import annotations

from typing import Any

from byteps.horovod.tensorflow import elastic
from byteps.horovod.tensorflow.functions import *  # noqa: F403
from byteps.horovod.tensorflow.functions import __all__ as _FUNCTIONS
from byteps.horovod.tensorflow.mpi_ops import *  # noqa: F403
from byteps.horovod.tensorflow.mpi_ops import __all__ as _OPERATIONS
from byteps.shared import __version__
from byteps.tensorflow.allreduce import allreduce, grouped_allreduce
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.reducescatter import grouped_reducescatter, reducescatter
from byteps.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from byteps.tensorflow.variables import BroadcastGlobalVariablesHook, broadcast_global_variables


def __getattr__(name: str) -> Any:
    """SyncBatchNormalization brings Keras along, which takes seconds."""
    if name == "SyncBatchNormalization":
        import byteps.tensorflow

        return byteps.tensorflow.SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    *_OPERATIONS,
    *_FUNCTIONS,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405 - by __getattr__
    "__version__",
    "allreduce",
    "broadcast_global_variables",
    "elastic",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
