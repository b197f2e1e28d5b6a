"""Stands in for horovod.torch.mpi_ops."""

from byteps.horovod.common.basics import *  # noqa: F403
from byteps.horovod.common.basics import __all__ as _BASICS
from byteps.torch.allgather import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from byteps.torch.allreduce import allreduce, allreduce_, allreduce_async, allreduce_async_
from byteps.torch.alltoall import alltoall, alltoall_async
from byteps.torch.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from byteps.torch.handle import poll, synchronize
from byteps.torch.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps.torch.sparse import sparse_allreduce_async

__all__ = [
    *(name for name in _BASICS if name != "__version__"),
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
