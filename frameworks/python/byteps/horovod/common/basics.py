"""What all of Horovod's modules have: `from byteps.horovod.common.basics import *`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.horovod_basics import barrier, join
from byteps.horovod_basics import init as _init
from byteps.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from byteps.reduce_op import Adasum, Average, Max, Min, Product, Sum
from byteps.shared import (
    HorovodInternalError,
    __version__,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the job; see byteps.torch.init.

    Args:
        comm: all ranks: None, a list of them, or an mpi4py communicator.
        process_sets: None, a list of sets, or "dynamic".
    """
    _init(comm, process_sets)


__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
