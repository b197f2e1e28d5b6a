"""What the binding asks of PyTorch about tensors in the memory of a GPU, and about its streams: this file alone knows
torch.cuda. The tests put another object into STREAMS, whose GPUs are simulated.

An operation on such a tensor is put behind what the caller's current stream holds, and the stream that
synchronizes waits for the result. The host waits for the network, and for no GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from byteps import _native
from byteps.errors import FailedPreconditionError, StatusCode
from byteps.torch.cuda_driver import new_stream

import torch


class Mark:
    """An event that was recorded in a stream, for whoever holds this; then it is the next mark's. (A stream that waits
    for it waits for what was recorded when it was told to.)"""

    __slots__ = ("_free", "event")

    def __init__(self, event: Any, free: list[Any]) -> None:
        self.event = event
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.event)


class DeviceStreams:
    """PyTorch's CUDA. Threads: any; "current" is what is current on the calling thread, such as autograd's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._private: dict[tuple[str, int], Any] = {}
        self._events: dict[int, list[Any]] = {}  # by GPU: those that no mark holds

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Whether the library takes the tensor's memory with a stream. Memory of ROCm goes through the host."""
        return tensor.is_cuda and torch.version.hip is None

    def gpu(self, tensor: torch.Tensor) -> int | None:
        """The number of the GPU whose streams order what is done to the tensor, one of ROCm's, too; None: none does."""
        return tensor.get_device() if tensor.is_cuda else None

    def index(self, tensor: torch.Tensor) -> int:
        """The number of the tensor's GPU, as this process counts."""
        return tensor.get_device()

    def address(self, tensor: torch.Tensor) -> int:
        """Of the first element, in the GPU's memory."""
        return tensor.data_ptr()

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """A new row-major tensor of that shape and dtype, on the same GPU, of the current stream."""
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)

    def nothing(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor without elements on the same GPU."""
        return torch.empty(0, dtype=like.dtype, device=like.device)

    def from_host(self, host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A tensor on the GPU of `like`, with what a tensor on the host holds, in its current stream."""
        # From memory that is not pinned, PyTorch's copy would wait for the stream.
        return host.pin_memory().to(like.device, non_blocking=True)

    def to_host(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Copies in pinned memory of row-major tensors of one GPU, on their way in a stream of their own behind what
        the current stream holds, and what copied() waits for. Until then the tensors are to be held, and kept as they
        are."""
        index = self.index(tensors[0])
        stream = self.private_stream(index, "copies")
        with self._lock:
            stream.wait_stream(torch.cuda.current_stream(index))
            with torch.cuda.stream(stream):
                copies = [
                    torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=True).copy_(one, non_blocking=True)
                    for one in tensors
                ]
            mark = torch.cuda.Event(blocking=True)
            mark.record(stream)
        return copies, mark

    def copied(self, mark: Any) -> None:
        """Waits on the host for copies to it; other threads go on."""
        mark.synchronize()

    def private_stream(self, index: int, purpose: str) -> Any:
        """A stream of a GPU for one purpose, for within(): nothing else has work in it, or captures it."""
        with self._lock:
            if (purpose, index) not in self._private:
                # torch.cuda.Stream() takes those of a pool in turns: the program's later ones are the same again.
                self._private[purpose, index] = (
                    torch.cuda.ExternalStream(new_stream(index), device=index)
                    if torch.version.hip is None
                    else torch.cuda.Stream(index)
                )
            return self._private[purpose, index]

    def current_stream(self, index: int) -> Any:
        """The current stream of a GPU, for within()."""
        return torch.cuda.current_stream(index)

    @contextmanager
    def within(self, streams: Mapping[int, Any]) -> Iterator[None]:
        """These streams, by GPU, are current on this thread meanwhile."""
        device = torch.cuda.current_device()
        with ExitStack() as stack:
            for stream in streams.values():
                stack.enter_context(torch.cuda.stream(stream))
            # Each of these has made its GPU the current one.
            stack.enter_context(torch.cuda.device(device))
            yield

    def is_capturing(self, index: int) -> bool:
        """Whether the current stream of a GPU is being captured into a CUDA graph."""
        with torch.cuda.device(index):
            return torch.cuda.is_current_stream_capturing()

    def memory(self, tensor: torch.Tensor) -> Any:
        """What holds the tensor's memory, also if the caller gives the tensor other memory meanwhile."""
        return tensor.untyped_storage()

    def mark(self, index: int) -> Mark:
        """What the current stream of a GPU holds now, for wait_for()."""
        free = self._events.setdefault(index, [])
        # Marks end at any time, in any thread.
        try:
            event = free.pop()
        except IndexError:
            event = self.new_event(index)
        mark = Mark(event, free)
        self.record(event, index)
        return mark

    def new_event(self, index: int) -> Any:
        """One of a GPU, for record()."""
        del index  # it becomes that of the stream it is recorded in
        return torch.cuda.Event()

    def record(self, event: Any, index: int) -> None:
        """In the current stream of a GPU."""
        event.record(torch.cuda.current_stream(index))

    def wait_for(self, mark: Mark, index: int) -> None:
        """The current stream of a GPU goes on behind what was marked."""
        torch.cuda.current_stream(index).wait_event(mark.event)

    def current(self, index: int) -> int:
        """The handle of the current stream of a GPU."""
        return int(torch.cuda.current_stream(index).cuda_stream)

    def keep(self, tensor: torch.Tensor) -> None:
        """The current stream uses the tensor: its memory is not given out before that."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def synchronize(self, index: int) -> None:
        """Waits on the host for what the current stream of a GPU holds. No training step does so with a stream of the
        program's."""
        torch.cuda.current_stream(index).synchronize()


STREAMS = DeviceStreams()


def is_device(tensor: torch.Tensor) -> bool:
    """Whether the library takes the tensor's memory where it is, in a GPU."""
    return STREAMS.is_device(tensor)


def address(tensor: torch.Tensor) -> int:
    """Of the first element, wherever it is."""
    return STREAMS.address(tensor) if is_device(tensor) else tensor.data_ptr()


def row_major_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor with the values of one on a GPU, which is copied in its current stream."""
    return STREAMS.empty(tensor).copy_(tensor.detach())


def new_output(tensor: torch.Tensor) -> torch.Tensor:
    """A new row-major tensor of the same shape, dtype and device."""
    if is_device(tensor):
        return STREAMS.empty(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


@contextmanager
def done_on_host(indices: Iterable[int]) -> Iterator[None]:
    """What is put into the current streams of these GPUs in here is done when this is left, for every stream. It waits
    for nothing that the program's streams hold: what is used in here must be there for every stream."""
    streams = {index: STREAMS.private_stream(index, "results") for index in indices}
    if not streams:
        yield
        return
    with STREAMS.within(streams):
        try:
            yield
        finally:
            for index in streams:
                STREAMS.synchronize(index)


def check_same_gpu(tensor: torch.Tensor, output: torch.Tensor) -> None:
    """Refuses an output elsewhere than its tensor, if that is on a GPU and they have elements. Raises ValueError."""
    if output is tensor or output.numel() == 0 or tensor.numel() == 0 or not is_device(tensor):
        return
    if not is_device(output) or STREAMS.index(output) != STREAMS.index(tensor):
        raise ValueError(
            f"the tensor is on {tensor.device} and the output on {output.device}: one operation is of one GPU; give an "
            "output on the tensor's device"
        )


def check_not_capturing(index: int, what: str) -> None:
    """Refuses a GPU whose current stream is being captured into a CUDA graph. Raises FailedPreconditionError."""
    if STREAMS.is_capturing(index):
        raise FailedPreconditionError(
            f"{what}: the current stream of GPU {index} is being captured into a CUDA graph: communication cannot be a "
            "part of one",
            StatusCode.FAILED_PRECONDITION,
        )


class HostResult:
    """A result that comes on the host, and from there to a GPU.

    Attributes:
        index: which GPU.
        finishes: it is brought there in a stream of the caller's.
    """

    __slots__ = ("index",)

    finishes = True

    def __init__(self, index: int) -> None:
        self.index = index

    def used_in(self, stream: int) -> None:
        """A stream of the caller's is given the result: it must not be one that is being captured."""
        del stream
        check_not_capturing(self.index, "the result")


class HostCopies:
    """Copies on the host of tensors of one GPU, on their way behind what the current stream holds.

    Attributes:
        tensors: the copies, behind wait().
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors are row-major, and not changed meanwhile."""
        self._held: Sequence[torch.Tensor] | None = tensors
        self.tensors, self._mark = STREAMS.to_host(tensors)

    def wait(self) -> None:
        """Waits on the host until they are there."""
        STREAMS.copied(self._mark)
        self._held = None


class DeviceInput(HostResult):
    """The input of an operation on the memory of a GPU, whose result, if it has one, comes on the host.

    Attributes:
        place: for the library: that GPU, and the stream that is current.
        read: an address in the GPU's memory.
        held: what holds that memory.
    """

    __slots__ = ("held", "place", "read")

    def __init__(self, tensor: torch.Tensor) -> None:
        index = STREAMS.index(tensor)
        super().__init__(index)
        # A copy within the GPU, in its current stream.
        sent = _row_major(tensor)
        self.read = STREAMS.address(sent)
        self.held = STREAMS.memory(sent)
        self.place = _native.DevicePlace(_native.CUDA, index, _native.CPU, 0, STREAMS.current(index), output_later=True)


class DevicePart:
    """An operation on the memory of one GPU: what the library is told, and what holds the memory.

    Attributes:
        index: which GPU.
        place: for the library: that GPU, and the stream that is current.
        read, written: addresses in the GPU's memory.
        held: what holds that memory.
        staged: what is written, if it is not the output's own memory.
        finishes: something is put into a stream of the caller's behind the result, which makes the output of it.
    """

    __slots__ = ("_done", "_output", "_stream", "finishes", "held", "index", "place", "read", "staged", "written")

    def __init__(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """`output`: `tensor` itself, or memory of its own on the same GPU; a tensor without elements may be anywhere.
        Raises ValueError."""
        streams = STREAMS
        check_same_gpu(tensor, output)
        is_read = streams.is_device(tensor) and (tensor.numel() != 0 or output.numel() == 0)
        self.index = index = streams.index(tensor if is_read else output)
        self._output = output
        self._stream = streams.current(index)
        self._done: tuple[int, Any] | None = None
        # Copies within the GPU, in its current stream.
        sent = _row_major(tensor) if is_read else None
        self.read = 0 if sent is None else streams.address(sent)
        if output is tensor:
            self.staged = None if sent is tensor else sent
            self.written = self.read
        else:
            self.staged = None if _is_row_major(output) else streams.empty(output)
            self.written = streams.address(output if self.staged is None else self.staged)
        self.finishes = self.staged is not None
        written = output if self.staged is None else self.staged
        self.held = (None if sent is None else streams.memory(sent), streams.memory(written))
        self.place = _native.DevicePlace(_native.CUDA, index, _native.CUDA, index, self._stream, output_later=True)

    def wait(self, request: _native.Request, output: torch.Tensor, timeout: float | None) -> None:
        """Makes the current stream wait for the result; the host waits until that is possible. Raises the operation's
        error."""
        stream = STREAMS.current(self.index)
        request.wait_on_stream(stream, timeout)
        self.used_in(stream)

    def used_in(self, stream: int) -> None:
        """The GPU's current stream, this one, uses the output from now on."""
        if stream != self._stream:
            # Made for the one, now used by the other.
            STREAMS.keep(self._output)
            if self.staged is not None:
                STREAMS.keep(self.staged)

    def finished(self) -> None:
        """The current stream has been given what makes the output of the result: other streams that follow() from now
        on go on behind it."""
        self._done = (STREAMS.current(self.index), STREAMS.mark(self.index))

    def follow(self) -> None:
        """Another stream that is current now goes on behind what finished() has seen."""
        if self._done is not None and self._done[0] != STREAMS.current(self.index):
            STREAMS.wait_for(self._done[1], self.index)


class DeviceResults:
    """The results of one request that come to GPUs, which may be several where it is of several operations: what makes
    streams wait for them."""

    def __init__(self, parts: Sequence[HostResult | DevicePart]) -> None:
        self._parts = parts
        # Of GPUs whose memory the library writes.
        self._written = sorted({part.index for part in parts if isinstance(part, DevicePart)})
        self._done: dict[int, tuple[int, Any]] = {}

    def are_there(self, request: Any) -> bool:
        """Whether wait() does not wait on the host."""
        return request.is_enqueued() if self._written else request.test()

    def wait(self, request: Any, timeout: float | None) -> None:
        """Makes the current stream of each GPU wait for the results; the host waits until that is possible. Raises the
        operation's error."""
        current = {part.index: STREAMS.current(part.index) for part in self._parts}
        if not self._written:
            request.wait(timeout)
        for index in self._written:
            request.wait_on_stream(current[index], timeout)
        for part in self._parts:
            part.used_in(current[part.index])

    def finished(self) -> None:
        """The current streams have been given what makes the outputs of the results."""
        for index in {part.index for part in self._parts if part.finishes}:
            self._done[index] = (STREAMS.current(index), STREAMS.mark(index))

    def follow(self) -> None:
        """Other streams that are current now go on behind what finished() has seen."""
        for index, (stream, mark) in self._done.items():
            if stream != STREAMS.current(index):
                STREAMS.wait_for(mark, index)

    def finishing(self) -> list[int]:
        """The GPUs in whose current streams the outputs are made of the results."""
        return sorted({part.index for part in self._parts if part.finishes})


def _is_row_major(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    if _is_row_major(tensor):
        return tensor
    return row_major_copy(tensor)
