"""An operation in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from byteps import _native
from byteps.speed import SPEED
from byteps.torch.device_streams import DevicePart, done_on_host

import torch

if TYPE_CHECKING:
    from byteps.torch.collective_handle import CollectiveHandle

T = TypeVar("T")


class Handle:
    """What the asynchronous operations return; give it to poll() and synchronize().

    It holds the tensors that the library still uses. Dropping it is allowed: the operation goes on, and its memory is
    kept until it has ended.

    Of tensors on a GPU: the result is in order on the stream that is current at synchronize(). The host waits there
    until the result is on its way into the GPU's memory, and for no work of the GPU.

    Threads: any, several at a time.
    """

    __slots__ = ("__weakref__", "_after", "_device", "_finished", "_lock", "_output", "_request", "_staged", "name")

    def __init__(
        self,
        request: _native.Request,
        name: str,
        output: torch.Tensor,
        staged: torch.Tensor | None = None,
        after: Callable[[torch.Tensor], None] | None = None,
        device: DevicePart | None = None,
    ) -> None:
        """`staged`: what the library writes, if it is not the output's own memory; it is copied there at the end.
        `after`: what is then done to the output, in place. `device`: of an operation on the memory of a GPU."""
        self.name = name
        self._request = request
        self._output = output
        self._staged = staged
        self._after = after
        self._device = device
        self._finished = False
        self._lock = threading.Lock()  # of what makes the output of the result
        if device is not None and after is not None:
            device.finishes = True

    def poll(self) -> bool:
        """Whether the operation has ended; on a GPU: whether synchronize() does not wait on the host. Never blocks."""
        return self._request.test() if self._device is None else self._request.is_enqueued()

    def synchronize(self, timeout: float | None = None) -> torch.Tensor:
        """Waits for the operation and returns its output; raises its error. May be called again."""
        if self._device is None:
            self._request.wait(timeout)
        else:
            self._device.wait(self._request, self._output, timeout)
        return self._finish()

    def _finish(self) -> torch.Tensor:
        """The output, which the first call makes of the result, in the current stream; those of others follow."""
        output, device = self._output, self._device
        with self._lock:
            if self._finished:
                if device is not None:
                    device.follow()
                return output
            if self._staged is not None:
                output.detach().copy_(self._staged)
                self._staged = None
            after, self._after = self._after, None
            if after is not None:
                after(output.detach())
            if device is not None and device.finishes:
                device.finished()
            SPEED.record(output.nbytes)
            # The library writes behind autograd's back; a backward pass that saved the old value must notice.
            if not output.is_inference():
                torch.autograd.graph.increment_version(output)
            self._finished = True
        return output

    def finish_on_host(self) -> torch.Tensor:
        """As synchronize(); then the result is there, whichever stream looks at it: for threads that have no stream of
        their own. The host waits for no stream of the program's."""
        if self._device is None:
            return self.synchronize()
        self._request.wait()  # the result is there for every stream
        with done_on_host([self._device.index] if self._device.finishes else ()):
            return self._finish()

    def cancel(self) -> None:
        """Asks to give the operation up: it then fails here and on the other ranks, unless it was already complete."""
        self._request.cancel()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: the operation belongs to this process. synchronize() it, and "
            "pickle what that returns"
        )

    def __repr__(self) -> str:
        return f"<byteps.torch.Handle {self.name!r} {self._request.state}>"


def wait_all(handles: Iterable[Handle | CollectiveHandle[Any]], timeout: float | None = None) -> None:
    """Waits for all, also when one fails; then raises the first error. `timeout`: seconds for each."""
    first: Exception | None = None
    for handle in handles:
        try:
            handle.synchronize(timeout)
        except Exception as error:  # kept, and raised below
            first = first or error
    if first is not None:
        raise first


def _checked(handle: Any) -> Any:
    if not (callable(getattr(handle, "poll", None)) and callable(getattr(handle, "synchronize", None))):
        raise TypeError(f"expected the handle that an asynchronous operation returned, not {handle!r}")
    return handle


def poll(handle: Handle | CollectiveHandle[Any]) -> bool:
    """Whether the operation has ended; synchronize() will then not wait."""
    return bool(_checked(handle).poll())


@overload
def synchronize(handle: Handle) -> torch.Tensor: ...


@overload
def synchronize(handle: CollectiveHandle[T]) -> T: ...


@overload
def synchronize(handle: None) -> None: ...


def synchronize(handle: Any) -> Any:
    """Waits for an asynchronous operation.

    Args:
        handle: what the operation returned. None: nothing was started, and there is nothing to wait for.

    Returns:
        Its output: for the in-place operations the tensor that was given. A list of them for grouped operations; of
        alltoall_async the tensor and how many rows came from each rank; None for None.

    Raises:
        BytePSError: FailedPreconditionError (the ranks disagree about the tensor; the session goes on),
            DeadlineExceededError (names the ranks that did not come), UnavailableError (a member died; names it),
            CancelledError, AbortedError.
        TypeError: `handle` is no Handle.
    """
    if type(handle) is Handle:  # by far the most frequent
        return handle.synchronize()
    return None if handle is None else _checked(handle).synchronize()
