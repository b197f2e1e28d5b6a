"""Stands in for horovod.torch: the same names and arguments, carried by BytePS.

    import byteps.horovod.torch as hvd

byteps.torch has all of this, too, and BytePS's own words beside it; here init() takes Horovod's arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.horovod.torch import elastic
from byteps.horovod.torch.mpi_ops import *  # noqa: F403
from byteps.horovod.torch.mpi_ops import __all__ as _OPERATIONS
from byteps.horovod_basics import init as _init
from byteps.torch import __version__
from byteps.torch.compression import Compression
from byteps.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.process_set import ProcessSet
from byteps.torch.sync_batch_norm import SyncBatchNorm


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the job; see byteps.torch.init.

    Args:
        comm: all ranks: None, a list of them, or an mpi4py communicator.
        process_sets: None, a list of sets, or "dynamic".
    """
    _init(comm, process_sets)


__all__ = [
    *(name for name in _OPERATIONS if name != "init"),
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "__version__",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "init",
]
