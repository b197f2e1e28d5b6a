"""Stands in for horovod.tensorflow.mpi_ops.

The operations are byteps.tensorflow's. Where BytePS's own arguments stand in another place than Horovod's, they are put
right here.
"""

from __future__ import annotations

from typing import Any

from byteps.horovod.common.basics import *  # noqa: F403
from byteps.horovod.common.basics import Average, ProcessSet, global_process_set
from byteps.horovod.common.basics import __all__ as _BASICS
from byteps.tensorflow.allgather import allgather, grouped_allgather
from byteps.tensorflow.alltoall import alltoall
from byteps.tensorflow.ops import broadcast as _broadcast
from byteps.tensorflow.rank_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """byteps.tensorflow.broadcast, with the average of all ranks' gradients as the root's. `ignore_name_scope` is
    accepted for compatibility."""
    del ignore_name_scope
    return _broadcast(tensor, root_rank, name=name, process_set=process_set, gradient_op=Average)


__all__ = [
    *(name for name in _BASICS if name != "__version__"),
    "allgather",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
