"""How operations on tensors are handed to the library.

push_pull and broadcast over all ranks have calls of their own, which take half the time of the others. Everything else
is a Part, one collective with what becomes of its result; parts are started one by one, or several as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from byteps import _native
from byteps.arguments import priority_number, tensor_name
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Adasum, ReduceOp
from byteps.session import Session, current_session
from byteps.speed import SPEED
from byteps.torch import device_streams
from byteps.torch.collective_handle import CollectiveHandle, GroupHandle
from byteps.torch.device_streams import DeviceInput, DevicePart, DeviceResults
from byteps.torch.dtypes import check_reduction, dtype_code
from byteps.torch.handle import Handle
from byteps.torch.wire_buffer import empty_buffer, is_wire_ready, staged_copy

import torch

After = Callable[[torch.Tensor], None]


def numbered_name(session: Session, kind: str, name: str | None, priority: Any = 0) -> str:
    """A name as it is, or the next number of its kind. Whatever can be wrong with the other arguments is to be refused
    before: a rank that uses a number up alone meets no other any more. `priority`: is checked here. Raises TypeError,
    ValueError."""
    if name is None:
        priority_number(priority)
        return f"{kind}.noname.{session.number(kind)}"
    return tensor_name(name)


def operation_name(kind: str, name: str | None, process_set: ProcessSet, priority: Any = 0) -> str:
    """The name of an operation of a kind whose names are its own: the given one, or a number; see numbered_name().
    Raises TypeError, ValueError."""
    if name is None:
        priority_number(priority)
        return f"{kind}.noname.{current_session().number(kind, process_set.key())}"
    return f"{kind}.{tensor_name(name)}"


def _reading(tensor: torch.Tensor) -> tuple[int, Any, torch.Tensor | None]:
    """The address in host memory that is read for it, what holds that memory, and the copy there, if it is one."""
    if tensor.numel() == 0:
        return 0, None, None
    # The storage holds the memory even if the caller gives the tensor other memory meanwhile.
    if is_wire_ready(tensor):
        return tensor.data_ptr(), tensor.untyped_storage(), None
    staged = staged_copy(tensor)
    return staged.data_ptr(), staged, staged


def _buffers(tensor: torch.Tensor, output: torch.Tensor) -> tuple[int, int, Any, torch.Tensor | None]:
    """The addresses in host memory that are read and written for them, what holds that memory, and what must be copied
    to the output at the end, if it is not written itself."""
    if output is tensor and is_wire_ready(tensor):  # by far the most frequent
        read = tensor.data_ptr()
        return read, read, tensor.untyped_storage(), None
    read, held, staged = _reading(tensor)
    if output is tensor:
        return read, read, held, staged
    if output.numel() == 0:
        return read, 0, held, None
    if is_wire_ready(output):
        return read, output.data_ptr(), (held, output.untyped_storage()), None
    staged = empty_buffer(output)
    return read, staged.data_ptr(), (held, staged), staged


def start_push_pull(
    tensor: torch.Tensor,
    output: torch.Tensor,
    op: ReduceOp,
    name: str | None,
    priority: int,
    after: After | None = None,
    timeout: float | None = None,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Reduces `tensor` over all ranks into `output`, which is `tensor` itself or memory of its own. `after`: what is
    then done to the output, in place. `timeout`: seconds, of the whole operation; None: BYTEPS_OP_TIMEOUT."""
    session = current_session()
    code = dtype_code(tensor.dtype)
    if name is None:
        check_reduction(op, tensor.dtype)
    name = numbered_name(session, "push_pull", name, priority)
    if op is Adasum:  # servers cannot: they see parts of tensors, and not their lengths
        return start_part(
            into_output(
                _native.ALL_REDUCE,
                tensor,
                output,
                name,
                global_process_set,
                priority,
                after=after,
                options={"op": op, "timeout": timeout},
            )
        )
    if device_streams.STREAMS.is_device(tensor):
        part = DevicePart(tensor, output)
        request = session.native.push_pull(
            name,
            code,
            tensor.shape,
            part.read,
            part.written,
            op,
            part.held,
            priority_number(priority),
            timeout,
            place=part.place,
        )
        return Handle(request, name, output, part.staged, after, part)
    read, written, held, staged = _buffers(tensor, output)
    # By position, which takes half the time of names.
    request = session.native.push_pull(
        name, code, tensor.shape, read, written, op, held, priority_number(priority), timeout
    )
    return Handle(request, name, output, staged, after)


def give_up_push_pull(
    name: str, dtype: torch.dtype, shape: Sequence[int], op: ReduceOp, process_set: ProcessSet, reason: str
) -> _native.Request:
    """Uses the next round of a push_pull's name up without taking part: it fails on all ranks, here at once. `dtype`,
    `shape`: of what would have been sent."""
    native, code = current_session().native, dtype_code(dtype)
    among = process_set.native()
    if among is None and op is not Adasum:
        return native.give_up_push_pull(name, code, shape, op, reason)
    if process_set is not global_process_set:
        name = operation_name("push_pull", name, process_set)
    operation = _native.Collective(_native.ALL_REDUCE, name, dtype=code, shape=shape, op=op, process_set=among)
    return native.give_up_collective(operation, reason)


def start_broadcast(
    tensor: torch.Tensor,
    output: torch.Tensor,
    root_rank: int,
    name: str,
    process_set: ProcessSet,
    priority: int,
    after: After | None = None,
    timeout: float | None = None,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Copies the root's `tensor` into every rank's `output`. `after`: what is then called with the output. `timeout`:
    seconds, of the whole operation; None: BYTEPS_OP_TIMEOUT."""
    session = current_session()
    if process_set.native() is not None:
        options = {"root": root_rank, "timeout": timeout}
        return start_part(
            into_output(_native.BROADCAST, tensor, output, name, process_set, priority, after=after, options=options)
        )
    code = dtype_code(tensor.dtype)
    if device_streams.STREAMS.is_device(tensor):
        part = DevicePart(tensor, output)
        request = session.native.broadcast(
            name,
            code,
            tensor.shape,
            part.read,
            part.written,
            root_rank,
            part.held,
            priority_number(priority),
            timeout,
            place=part.place,
        )
        return Handle(request, name, output, part.staged, after, part)
    # Read on the root alone, but in-place operation shares the buffer, and it is written anyway elsewhere.
    read, written, held, staged = _buffers(tensor, output)
    request = session.native.broadcast(
        name, code, tensor.shape, read, written, root_rank, held, priority_number(priority), timeout
    )
    return Handle(request, name, output, staged, after)


class Part:
    """One collective as the library takes it, what holds its memory, and what makes its output when it has ended: a
    function of the request and the place in it. `device`: of an operation on the memory of a GPU."""

    __slots__ = ("device", "finish", "held", "name", "operation")

    def __init__(
        self,
        name: str,
        operation: _native.Collective,
        held: Any,
        finish: Callable[[_native.Request, int], Any],
        device: DeviceInput | DevicePart | None = None,
    ) -> None:
        self.name = name
        self.operation = operation
        self.held = held
        self.finish = finish
        self.device = device


def start_part(part: Part) -> CollectiveHandle[Any]:
    """Starts one operation. Raises what the library refuses it with."""
    request = current_session().native.collective(part.operation, part.held)
    finish = part.finish
    device = None if part.device is None else DeviceResults([part.device])
    return CollectiveHandle(part.name, request, lambda ended: finish(ended, 0), device)


def start_group(name: str, parts: Sequence[Part]) -> GroupHandle:
    """Starts several operations as one: all of them, or none."""
    if not parts:
        return GroupHandle(name, None, lambda ended: [])
    request = current_session().native.group([part.operation for part in parts], [part.held for part in parts])
    finishes = [part.finish for part in parts]
    on_gpus = [part.device for part in parts if part.device is not None]
    return GroupHandle(
        name,
        request,
        lambda ended: [finish(ended, index) for index, finish in enumerate(finishes)],
        DeviceResults(on_gpus) if on_gpus else None,
    )


def run_parts(parts: Sequence[Part], grouped: bool) -> list[Any]:
    """The outputs of several operations as one; not `grouped`: of the only one. Groups meet only groups."""
    return start_group(parts[0].name, parts).synchronize() if grouped else [start_part(parts[0]).synchronize()]


def into_output(
    kind: int,
    tensor: torch.Tensor,
    output: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    after: After | None = None,
    options: dict[str, Any] | None = None,
) -> Part:
    """A collective of `tensor` whose result goes into `output`, which may be `tensor` itself where the kind allows it.

    Args:
        after: what is then done to the output, in place.
        options: more arguments of the collective: op, root, splits, scale, peer, tag, timeout.
    """
    device: DeviceInput | DevicePart | None = None
    read: int
    written: int
    held: Any
    staged: torch.Tensor | None
    if tensor.numel() != 0 and output.numel() == 0 and device_streams.is_device(tensor):
        device = DeviceInput(tensor)  # (no address in a GPU's memory stands for no output)
        read, written, held, staged = device.read, 0, device.held, None
    elif output.numel() != 0 and device_streams.is_device(tensor if tensor.numel() != 0 else output):
        device = DevicePart(tensor, output)
        device.finishes |= after is not None
        read, written, held, staged = device.read, device.written, device.held, device.staged
    else:
        read, written, held, staged = _buffers(tensor, output)
    operation = _native.Collective(
        kind,
        name,
        dtype=dtype_code(tensor.dtype),
        shape=tensor.shape,
        input=read,
        output=written,
        output_bytes=output.numel() * output.element_size(),
        process_set=process_set.native(),
        priority=priority_number(priority),
        place=None if device is None else device.place,
        **(options or {}),
    )

    def finish(ended: _native.Request, index: int) -> torch.Tensor:
        del ended, index
        target = output.detach()
        if staged is not None:
            target.copy_(staged)
        if after is not None:
            after(target)
        SPEED.record(output.numel() * output.element_size())
        # The library writes behind autograd's back; a backward pass that saved the old value must notice.
        if not output.is_inference():
            torch.autograd.graph.increment_version(output)
        return output

    return Part(name or "", operation, held, finish, device)


def into_new(
    kind: int,
    tensor: torch.Tensor,
    name: str,
    process_set: ProcessSet,
    priority: int,
    finish: Callable[[torch.Tensor, list[int]], Any],
    options: dict[str, Any] | None = None,
) -> Part:
    """A collective of `tensor` whose result, of a size that is not known beforehand, becomes a new tensor. Of a GPU's,
    the library reads the tensor there; the result comes on the host, and from there to the GPU.

    Args:
        finish: makes the output of that tensor and of the rows that it has from (or for) each rank.
        options: more arguments of the collective.
    """
    device: DeviceInput | None = None
    read: int
    held: Any
    if device_streams.is_device(tensor):
        device = DeviceInput(tensor)
        read, held = device.read, device.held
    else:
        read, held, _ = _reading(tensor)
    operation = _native.Collective(
        kind,
        name,
        dtype=dtype_code(tensor.dtype),
        shape=tensor.shape,
        input=read,
        process_set=process_set.native(),
        priority=priority_number(priority),
        place=None if device is None else device.place,
        **(options or {}),
    )
    # Not the tensor itself: its memory is not held longer than the operation takes.
    dtype, target = tensor.dtype, tensor.device
    like = None if device is None else device_streams.STREAMS.nothing(tensor)

    def made(ended: _native.Request, index: int) -> Any:
        result = ended.result(index)
        if len(result):
            # The tensor's storage holds the result.
            found = torch.frombuffer(result, dtype=dtype).view(result.shape)
        else:
            # What gets nothing has no shape either.
            found = torch.empty(result.shape or (0,), dtype=dtype, device="cpu")
        SPEED.record(len(result))
        there = found.to(target) if like is None else device_streams.STREAMS.from_host(found, like)
        return finish(there, result.splits)

    return Part(name, operation, held, made, device)
