"""Stands in for horovod.mxnet.mpi_ops."""

from byteps.horovod.common.basics import *  # noqa: F403
from byteps.horovod.common.basics import __all__ as _BASICS
from byteps.mxnet.allreduce import allreduce, allreduce_, grouped_allreduce, grouped_allreduce_
from byteps.mxnet.collectives import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from byteps.mxnet.ops import broadcast, broadcast_

__all__ = [
    *(name for name in _BASICS if name != "__version__"),
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
