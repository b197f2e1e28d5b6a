"""Bytes that wait until the other side takes them: the sender does not wait."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import select
import selectors
import stat
import time
from collections.abc import Callable

_PIECE = 64 * 1024


def _nothing() -> None:
    pass


@dataclasses.dataclass
class _Piece:
    data: memoryview
    taken: Callable[[], None]  # called when it was written, or is given up
    lasting: bool


class Outbox:
    """The writing end of a pipe, terminal, file or socket, served by a selector. Not for several threads.

    `on_broken` is called once, with the error, when it cannot be written any more (there is no reader, a disk is full);
    what is sent afterwards is dropped.
    """

    def __init__(
        self,
        descriptor: int,
        selector: selectors.BaseSelector,
        on_broken: Callable[[OSError], None],
        shared: bool = False,
    ) -> None:
        """`shared`: others write there, too, as to our standard output; it must not become non-blocking for them."""
        self._descriptor = descriptor
        self._asks = False  # whether to ask before each writing if it would block
        if not shared:
            os.set_blocking(descriptor, False)
        elif (own := _opened_again(descriptor)) is not None:
            self._descriptor = own
        else:
            self._asks = True
        self._selector = selector
        self._on_broken = on_broken
        self._pieces: collections.deque[_Piece] = collections.deque()
        self._watching = False
        self._broken = False
        self._inside_line = False
        self.size = 0  # bytes that wait
        self.waiting_since = 0.0  # if some do: since when, of time.monotonic()

    def send(self, data: bytes, taken: Callable[[], None] = _nothing, lasting: bool = False) -> None:
        """Sends now what can be sent now.

        Args:
            data: what to send
            taken: is called when it was written, or is given up
            lasting: drop() does not give it up
        """
        if self._broken or not data:
            taken()
            return
        if not self._pieces:
            self.waiting_since = time.monotonic()
        self._pieces.append(_Piece(memoryview(data), taken, lasting))
        self.size += len(data)
        if not self._watching:
            self._flush()

    def drop(self) -> None:
        """Gives up what waits, but for lasting pieces; a line of which a part was written ends there."""
        pieces, self._pieces = self._pieces, collections.deque()
        if self._inside_line and not (pieces and pieces[0].lasting):
            self._pieces.append(_Piece(memoryview(b"\n"), _nothing, True))
        self._pieces.extend(piece for piece in pieces if piece.lasting)
        self.size = sum(len(piece.data) for piece in self._pieces)
        self.waiting_since = time.monotonic()
        for piece in pieces:
            if not piece.lasting:
                piece.taken()
        self._flush()

    def close(self) -> None:
        """Forgets what waits. The descriptor stays open, and is its owner's."""
        self._broken = True
        pieces, self._pieces = self._pieces, collections.deque()
        self.size = 0
        self._watch(False)
        for piece in pieces:
            piece.taken()

    def drain(self, deadline: float) -> None:
        """Waits until all is sent or it is the deadline (of time.monotonic())."""
        while self._pieces and not self._broken and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            poll.poll(left * 1000)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._pieces:
                piece = self._pieces[0]
                if self._asks and not select.select([], [self._descriptor], [], 0)[1]:
                    break
                # Writable means that so much can be written without waiting.
                most = select.PIPE_BUF if self._asks else _PIECE
                sent = os.write(self._descriptor, piece.data[:most])
                self.size -= sent
                self._inside_line = piece.data[sent - 1 : sent] != b"\n"
                piece.data = piece.data[sent:]
                if not piece.data:
                    self._pieces.popleft()
                    piece.taken()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self._on_broken(error)
            return
        self._watch(bool(self._pieces))

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        if not wanted and self._watching:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._descriptor)
        self._watching = wanted


def _opened_again(descriptor: int) -> int | None:
    """A description of our own of the same pipe or terminal; None: it is something else, or may not be opened."""
    with contextlib.suppress(OSError):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or os.isatty(descriptor):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return None
