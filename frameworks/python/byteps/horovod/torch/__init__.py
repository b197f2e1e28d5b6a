"""Stands in for horovod.torch: the same names and arguments, carried by BytePS.

    import byteps.horovod.torch as hvd

byteps.torch has all of this, too, and BytePS's own words beside it; here init() takes Horovod's arguments alone.
"""

from __future__ import annotations

from byteps.horovod.torch import elastic
from byteps.horovod.torch.mpi_ops import *  # noqa: F403
from byteps.horovod.torch.mpi_ops import __all__ as _OPERATIONS
from byteps.torch import __version__
from byteps.torch.compression import Compression
from byteps.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *_OPERATIONS,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "__version__",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
]
