"""An operation in flight on an array."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from byteps import _native


class Operation:
    """A push_pull or broadcast that goes on: wait for it, ask it, await it, or drop it. The arrays are held until it
    has ended, whatever becomes of this object; until then they must not be changed, nor the output be read."""

    __slots__ = ("_ended", "_output", "_request")

    def __init__(self, request: _native.Request, output: Any, ended: asyncio.Future[None] | None) -> None:
        self._request = request
        self._output = output
        self._ended = ended

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation has ended, at most `timeout` seconds, and returns its output.

        Raises:
            BytePSError: the operation's error; or DeadlineExceededError when the wait ended first: it then goes on.
        """
        self._request.wait(timeout)
        return self._output

    def done(self) -> bool:
        """Whether the operation has ended. Never blocks, never raises the operation's error."""
        return self._request.test()

    def cancel(self) -> None:
        """Asks to give up. The operation then ends with CancelledError here and with AbortedError on the other ranks,
        unless it was already complete."""
        self._request.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        """`await operation` returns what wait() returns. A task that is cancelled meanwhile gives the operation up
        (asyncio.shield prevents it)."""
        if not self._request.test():
            try:
                if self._ended is not None and self._ended.get_loop() is asyncio.get_running_loop():
                    # Shielded: several tasks may await one operation.
                    yield from asyncio.shield(self._ended).__await__()
                else:
                    # Begun where no loop ran: it has to be waited for.
                    yield from asyncio.get_running_loop().run_in_executor(None, self._outcome).__await__()
            except asyncio.CancelledError:
                self._request.cancel()
                raise
        return self.wait()

    def _outcome(self) -> None:
        # Its error is raised where it is awaited.
        try:
            self._request.wait()
        except Exception:
            if not self._request.test():
                raise

    def __repr__(self) -> str:
        return f"<byteps.Operation {self._request.state}>"
