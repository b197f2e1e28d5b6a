"""BytePS for PyTorch.

    import byteps.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

Start it with `bpslaunch --workers 2 -- python train.py`; examples/torch/digits.py is a whole one.
"""

from byteps import shared as _shared
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...
from byteps.torch.allgather import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from byteps.torch.allreduce import allreduce, allreduce_, allreduce_async, allreduce_async_
from byteps.torch.alltoall import alltoall, alltoall_async
from byteps.torch.batched import batched_fuse_, batched_unfuse_, batched_zero_, dc_adam_, delay_compensation_
from byteps.torch.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.c10d import register as _register_backend
from byteps.torch.collective_handle import CollectiveHandle, GroupHandle
from byteps.torch.comm_hook import CommHookState, comm_hook
from byteps.torch.compression import Compression
from byteps.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from byteps.torch.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from byteps.torch.handle import Handle, poll, synchronize
from byteps.torch.memory import empty, empty_like
from byteps.torch.messages import recv_async, send_async
from byteps.torch.ops import (
    byteps_push_pull,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_async_into,
    push_pull_inplace,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.process_set import ProcessSet, add_process_set, barrier, global_process_set, remove_process_set
from byteps.torch.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps.torch.sparse import sparse_allreduce_async
from byteps.torch.sync_batch_norm import SyncBatchNorm

# What is of both: the functions here take tensors of PyTorch, and Horovod's arguments.
_REPLACED = {
    "ProcessSet",
    "add_process_set",
    "barrier",
    "broadcast_object",
    "global_process_set",
    "remove_process_set",
}
__all__ = [
    *(name for name in _shared.__all__ if name not in _REPLACED),
    "CollectiveHandle",
    "CommHookState",
    "Compression",
    "DistributedOptimizer",
    "GroupHandle",
    "Handle",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "batched_fuse_",
    "batched_unfuse_",
    "batched_zero_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "comm_hook",
    "dc_adam_",
    "declare",
    "delay_compensation_",
    "empty",
    "empty_like",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_async_into",
    "push_pull_inplace",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "send_async",
    "sparse_allreduce_async",
    "synchronize",
]

from byteps.torch import elastic, parallel  # noqa: E402, F401 - stand on the names above

_register_backend()
