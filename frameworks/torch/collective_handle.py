"""Collectives in flight: one, or several as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from byteps import _native
from byteps.torch.device_streams import DeviceResults, done_on_host
from byteps.torch.late_request import LateRequest

import torch

T = TypeVar("T")


class CollectiveHandle(Generic[T]):
    """What asynchronous collectives return; give it to poll() and synchronize().

    Dropping it is allowed: the operation goes on, and its memory is kept until it has ended. Of an output on a GPU: as
    of Handle.
    """

    def __init__(
        self,
        name: str,
        request: _native.Request | LateRequest | None,
        finish: Callable[[Any], T],
        device: DeviceResults | None = None,
    ) -> None:
        """`request`: None: there is nothing to wait for. `finish`: what makes the output of the request, when it has
        ended; called once. `device`: of outputs on GPUs."""
        self.name = name
        self._request = request
        self._device = device
        self._finish: Callable[[Any], T] | None = finish
        self._output: Any = None
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Whether the operation has ended; on a GPU: whether synchronize() does not wait on the host. Never blocks."""
        if self._request is None:
            return True
        return self._request.test() if self._device is None else self._device.are_there(self._request)

    def synchronize(self, timeout: float | None = None) -> T:
        """Waits for the operation, at most `timeout` seconds, and returns its output; raises its error. May be called
        again."""
        if self._request is not None:
            if self._device is None:
                self._request.wait(timeout)
            else:
                self._device.wait(self._request, timeout)
        return self._made()

    def _made(self) -> T:
        """The output, which the first call makes, in the current streams; those of others follow."""
        with self._lock:
            if self._finish is not None:
                self._output = self._finish(self._request)
                self._finish = None
                if self._device is not None:
                    self._device.finished()
            elif self._device is not None:
                self._device.follow()
        output: T = self._output
        return output

    def finish_on_host(self) -> T:
        """As synchronize(); then the result is there, whichever stream looks at it. The host waits for no stream of the
        program's."""
        if self._device is None or self._request is None:
            return self.synchronize()
        self._request.wait()  # the results are there for every stream
        with done_on_host(self._device.finishing()):
            return self._made()

    def cancel(self) -> None:
        """Asks to give the operation up: it then fails here and on the other ranks, unless it was already complete."""
        if self._request is not None:
            self._request.cancel()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: the operation belongs to this process. synchronize() it, and "
            "pickle what that returns"
        )

    def __repr__(self) -> str:
        state = "done" if self._request is None else self._request.state
        return f"<byteps.torch.{type(self).__name__} {self.name!r} {state}>"


class GroupHandle(CollectiveHandle[list[torch.Tensor]]):
    """What grouped operations return; synchronize() returns the list of outputs. If one operation fails, the others are
    given up, and its error is the group's."""
