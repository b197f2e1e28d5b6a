"""Futures of torch that complete when operations have ended.

C++ does not know what torch.futures.Future.set_exception() sets: DDP takes the exception for its gradients, and the
process crashes. So a future that is made in a backward pass completes as if all was well, and the backward pass itself
raises the error, at its very end: DDP has done then what it does at the end of a pass, and may begin another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from byteps.torch.completions import Waitable, when_done

import torch

T = TypeVar("T")


class _BackwardPass:
    """The backward pass that this thread runs, which may raise an error at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._has_ended = False
        # DDP waits for its futures in such a callback, too, which it adds behind this one. What a callback adds comes
        # last.
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(self._end))

    def will_raise(self, error: BaseException) -> bool:
        """Gives it an error. False: the pass is over."""
        with self._lock:
            if not self._has_ended:
                self._error = error
            return not self._has_ended

    def _end(self) -> None:
        with self._lock:
            self._has_ended = True
            error, self._error = self._error, None
        if error is not None:
            raise error


def operation_future(handle: Waitable, value: Callable[[Any], T], unspecified: T) -> torch.futures.Future[T]:
    """A future that completes when the operation has ended.

    Args:
        handle: the operation.
        value: of the future, from the operation's output; called on a thread of BytePS's. It may raise.
        unspecified: the value of the future if the backward pass raises the error.
    """
    future: torch.futures.Future[T] = torch.futures.Future()
    backward_pass = _BackwardPass() if torch._C._current_graph_task_id() != -1 else None

    def done(output: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                result = value(output)
            except Exception as raised:  # whoever waits for the future must be told
                error = raised
            else:
                future.set_result(result)
                return
        if backward_pass is not None and backward_pass.will_raise(error):
            future.set_result(unspecified)
        else:
            future.set_exception(error)  # type: ignore[arg-type]

    when_done(handle, done)
    return future
