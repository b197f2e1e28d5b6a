"""How the event loop of asyncio hears that operations have ended: through a file descriptor for each loop, which the
library makes readable. Nothing polls, and no thread waits."""

from __future__ import annotations

import asyncio
import itertools
import weakref

from byteps import _native


class _Endings:
    """The operations that began in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.Completions()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._tokens = itertools.count(1)
        loop.add_reader(self.completions.fileno(), self._tell)

    def expect(self, loop: asyncio.AbstractEventLoop) -> tuple[int, asyncio.Future[None]]:
        token, future = next(self._tokens), loop.create_future()
        self._futures[token] = future
        return token, future

    def forget(self, token: int) -> None:
        del self._futures[token]

    def _tell(self) -> None:
        for token in self.completions.take():
            future = self._futures.pop(token)
            if not future.done():
                future.set_result(None)


# A loop that is gone takes its descriptor along.
_ENDINGS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Endings] = weakref.WeakKeyDictionary()


class Expectation:
    """What an operation that begins now is given, so that the running loop hears of its end; nothing where none runs.

    expectation = Expectation()
    request = native.push_pull(..., completions=expectation.completions, token=expectation.token)
    """

    __slots__ = ("_endings", "completions", "future", "token")

    def __init__(self) -> None:
        self.completions: _native.Completions | None = None
        self.token = 0
        self.future: asyncio.Future[None] | None = None
        self._endings: _Endings | None = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        endings = _ENDINGS.get(loop)
        if endings is None:
            try:
                endings = _ENDINGS[loop] = _Endings(loop)
            except NotImplementedError:  # a loop without add_reader: its executor waits
                return
        self._endings, self.completions = endings, endings.completions
        self.token, self.future = endings.expect(loop)

    def drop(self) -> None:
        """The operation was not accepted."""
        if self._endings is not None:
            self._endings.forget(self.token)
