"""What the binding asks of PyTorch about tensors in the memory of a GPU, and about its streams: this file alone knows
torch.cuda. The tests put another object into STREAMS, whose GPUs are simulated.

An operation on such a tensor is put behind what the caller's current stream holds, and the stream that
synchronizes waits for the result. The host waits for the network, and for no GPU.
"""

from __future__ import annotations

from typing import Any

from byteps import _native

import torch


class DeviceStreams:
    """PyTorch's CUDA. Threads: any; "current" is what is current on the calling thread, such as autograd's."""

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Whether the library takes the tensor's memory with a stream. Memory of ROCm goes through the host."""
        return tensor.is_cuda and torch.version.hip is None

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

    def memory(self, tensor: torch.Tensor) -> Any:
        """What holds the tensor's memory, also if the caller gives the tensor other memory meanwhile."""
        return tensor.untyped_storage()

    def mark(self, index: int) -> Any:
        """What the current stream of a GPU holds now, for wait_for()."""
        mark = torch.cuda.Event()
        mark.record(torch.cuda.current_stream(index))
        return mark

    def wait_for(self, mark: Any, index: int) -> None:
        """The current stream of a GPU goes on behind what was marked."""
        torch.cuda.current_stream(index).wait_event(mark)

    def current(self, index: int) -> int:
        """The handle of the current stream of a GPU."""
        return int(torch.cuda.current_stream(index).cuda_stream)

    def keep(self, tensor: torch.Tensor) -> None:
        """The current stream uses the tensor: its memory is not given out before that."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def synchronize(self, index: int) -> None:
        """Waits on the host for what the current stream of a GPU holds. No training step does."""
        torch.cuda.current_stream(index).synchronize()


STREAMS = DeviceStreams()


def is_device(tensor: torch.Tensor) -> bool:
    """Whether the library takes the tensor's memory where it is, in a GPU."""
    return STREAMS.is_device(tensor)


def new_output(tensor: torch.Tensor) -> torch.Tensor:
    """A new row-major tensor of the same shape, dtype and device."""
    if is_device(tensor):
        return STREAMS.empty(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def finish_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, when what the current stream does to it is done; of a tensor on the host: it."""
    if is_device(tensor):
        STREAMS.synchronize(STREAMS.index(tensor))
    return tensor


class DeviceInput:
    """The input of an operation on the memory of a GPU, whose result comes on the host.

    Attributes:
        place: for the library: which GPU, and the stream that is current.
        read: an address in the GPU's memory.
        held: what holds that memory.
    """

    __slots__ = ("held", "place", "read")

    def __init__(self, tensor: torch.Tensor) -> None:
        index = STREAMS.index(tensor)
        # A copy within the GPU, in its current stream.
        sent = _row_major(tensor)
        self.read = STREAMS.address(sent)
        self.held = STREAMS.memory(sent)
        self.place = _native.DevicePlace(_native.CUDA, index, _native.CPU, 0, STREAMS.current(index), output_later=True)


class DevicePart:
    """An operation on the memory of one GPU: what the library is told, and what holds the memory.

    Attributes:
        place: for the library: which GPU, and the stream that is current.
        read, written: addresses in the GPU's memory.
        held: what holds that memory.
        staged: what is written, if it is not the output's own memory.
    """

    __slots__ = ("_done", "_stream", "held", "index", "place", "read", "staged", "written")

    def __init__(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """`output`: `tensor` itself, or memory of its own on the same GPU. Raises ValueError."""
        streams = STREAMS
        index = streams.index(tensor)
        if output is not tensor and (not streams.is_device(output) or streams.index(output) != index):
            raise ValueError(
                f"the tensor is on {tensor.device} and the output on {output.device}: one operation is of one GPU; "
                "give an output on the tensor's device"
            )
        self.index = index
        self._stream = streams.current(index)
        self._done: tuple[int, Any] | None = None
        # Copies within the GPU, in its current stream.
        sent = _row_major(tensor)
        self.read = streams.address(sent)
        if output is tensor:
            self.staged = None if sent is tensor else sent
            self.written = self.read
        else:
            self.staged = None if _is_row_major(output) else streams.empty(output)
            self.written = streams.address(output if self.staged is None else self.staged)
        written = output if self.staged is None else self.staged
        self.held = (streams.memory(sent), streams.memory(written))
        self.place = _native.DevicePlace(_native.CUDA, index, _native.CUDA, index, self._stream, output_later=True)

    def wait(self, request: _native.Request, output: torch.Tensor, timeout: float | None) -> None:
        """Makes the current stream wait for the result; the host waits until that is possible. Raises the operation's
        error."""
        stream = STREAMS.current(self.index)
        request.wait_on_stream(stream, timeout)
        if stream != self._stream:
            # Made for the one, now used by the other.
            STREAMS.keep(output)
            if self.staged is not None:
                STREAMS.keep(self.staged)
        if self._done is not None and self._done[0] != stream:
            STREAMS.wait_for(self._done[1], self.index)

    def finished(self) -> None:
        """The current stream has been given what makes the output of the result: other streams that wait() from now on
        go on behind it."""
        self._done = (STREAMS.current(self.index), STREAMS.mark(self.index))


def _is_row_major(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    if _is_row_major(tensor):
        return tensor
    return STREAMS.empty(tensor).copy_(tensor.detach())
