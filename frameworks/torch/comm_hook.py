"""BytePS under torch.nn.parallel.DistributedDataParallel: a communication hook.

    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, byteps.torch.comm_hook)

DDP keeps its buckets, its process group carries what it needs at the beginning, and the gradients travel by BytePS.
"""

from __future__ import annotations

from typing import Any

from byteps.asynchronous import refuse_asynchronous
from byteps.reduce_op import Average
from byteps.session import current_session
from byteps.torch import device_streams
from byteps.torch.compression import Compression, Compressor, check_compression, is_built_in
from byteps.torch.operation_future import operation_future
from byteps.torch.ops import push_pull_async_into
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set, known_process_set

import torch
from torch.utils.weak import WeakTensorKeyDictionary

# The first parameter of a bucket -> its number. DDP fills buckets alike on all ranks, so the numbers are alike.
_numbers: Any = WeakTensorKeyDictionary()


class CommHookState:
    """What register_comm_hook may be given in place of None: how gradients are compressed on their way, and the ranks
    whose gradients are averaged."""

    def __init__(
        self, compression: type[Compressor] = Compression.none, process_set: ProcessSet = global_process_set
    ) -> None:
        check_compression(compression)
        self.compression = compression
        self.process_set = check_process_set(process_set)


def _number(parameter: torch.Tensor, process_set: ProcessSet) -> int:
    session = current_session()
    known = _numbers.get(parameter)
    if known is None or known[0] is not session:
        known = _numbers[parameter] = (session, session.object_number("comm_hook", process_set.key()))
    return known[1]


def comm_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all workers. The ranks of DDP's process group are to be those of the job.

    Args:
        state: None, or a CommHookState; or what DDP's own hooks get there, a process group: of the backend byteps, or
            of all ranks.
        bucket: a torch.distributed.GradBucket.

    Raises:
        TypeError: `state` is something else.
        UnimplementedError: the job trains asynchronously.
        BytePSError: before init(), or what is in flight already. What goes wrong later, the backward pass raises, at
            its end; the gradients are unspecified then.
    """
    refuse_asynchronous("byteps.torch.comm_hook")
    compression: type[Compressor] = Compression.none
    process_set = global_process_set
    if isinstance(state, CommHookState):
        # A copy of the state has a set of its own.
        compression, process_set = state.compression, known_process_set(state.process_set)
    elif isinstance(getattr(state, "process_set", None), ProcessSet):
        process_set = state.process_set
    elif state is not None and not (callable(getattr(state, "size", None)) and state.size() == _job_size()):
        raise TypeError(
            f"state is {state!r}; it must be None, a CommHookState, or a process group of the backend byteps or of all "
            "ranks"
        )
    buffer: torch.Tensor = bucket.buffer()
    sent, context = compression.compress(buffer)
    # The forward pass needs first what the backward pass gives last.
    handle = push_pull_async_into(
        sent,
        sent,
        name=f"comm_hook.{_number(bucket.parameters()[0], process_set)}",
        priority=bucket.index(),
        op=Average,
        process_set=process_set,
    )

    def averaged(output: torch.Tensor) -> torch.Tensor:
        if output is not buffer or not is_built_in(compression):
            gpu = device_streams.STREAMS.gpu(buffer)
            with device_streams.done_on_host(() if gpu is None else (gpu,)):
                result = compression.decompress(output, context)
                if result is not buffer:
                    buffer.copy_(result)
        return buffer

    return operation_future(handle, averaged, buffer)


# DDP looks at these, and wants types in place of their names.
if torch.distributed.is_available():
    comm_hook.__annotations__.update(
        {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    )


def _job_size() -> int:
    return int(current_session().native.info()["size"])
