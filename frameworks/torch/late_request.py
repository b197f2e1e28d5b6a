"""Operations that read memory of the host while they are started, on tensors of a GPU: they are started when these have
been copied there, on a thread of their own. Whoever starts one waits for no GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from byteps import _native
from byteps.errors import DeadlineExceededError, StatusCode
from byteps.torch.device_streams import HostCopies

import torch

_DEFAULT_SECONDS = 600.0


def _operation_seconds() -> float:
    """How long an operation may take."""
    from byteps.launcher.environment import Environment

    return Environment(os.environ).seconds("BYTEPS_OP_TIMEOUT") or _DEFAULT_SECONDS


class LateRequest:
    """A request of the library's that is still to be made; to its users it is one.

    One thread for each: a stream that waits for another rank holds up no operation but its own.
    """

    def __init__(self, name: str, copies: HostCopies, start: Callable[[list[torch.Tensor]], _native.Request]) -> None:
        """`start`: what makes the request of the copies."""
        self._name = name
        self._request: _native.Request | None = None
        self._error: BaseException | None = None
        self._cancelled = False
        self._lock = threading.Lock()
        self._started = threading.Event()
        threading.Thread(target=self._run, args=(copies, start), name="byteps copies", daemon=True).start()

    def _run(self, copies: HostCopies, start: Callable[[list[torch.Tensor]], _native.Request]) -> None:
        try:
            copies.wait()
            request = start(copies.tensors)
            with self._lock:
                self._request = request
                cancelled = self._cancelled
            if cancelled:
                request.cancel()
        except BaseException as error:  # raised where it is waited for
            self._error = error
        self._started.set()

    def _made(self) -> _native.Request:
        if self._error is not None:
            raise self._error
        assert self._request is not None
        return self._request

    @property
    def state(self) -> str:
        """As of a request."""
        if self._error is not None:
            return "failed"
        return "declaring" if self._request is None else self._request.state

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the operation has ended; raises its error."""
        begin, seconds = time.monotonic(), timeout or _operation_seconds()
        if not self._started.wait(seconds):
            raise DeadlineExceededError(
                f"{self._name}: the GPU had not come to the copy of the tensor after {seconds:g} s: what was in the "
                "caller's stream has not ended",
                StatusCode.DEADLINE_EXCEEDED,
                retryable=True,
            )
        left = None if timeout is None else max(timeout - (time.monotonic() - begin), 1e-3)
        self._made().wait(left)

    def test(self) -> bool:
        """Whether the operation has ended. Never blocks."""
        return self._started.is_set() and (self._error is not None or self._made().test())

    def result(self, index: int = 0) -> _native.Result:
        """Behind wait()."""
        return self._made().result(index)

    def cancel(self) -> None:
        """Gives the operation up. The other ranks are to hear of it, so that it is started nevertheless."""
        with self._lock:
            self._cancelled = True
            request = self._request
        if request is not None:
            request.cancel()
