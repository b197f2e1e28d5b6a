"""The output of many processes on one terminal: whole lines, each with the name of who wrote it.

    lines = LineSplitter()
    outbox.send(printer.text("worker 0", sys.stdout.fileno(), lines.feed(data, now)))

Bytes stay bytes: nothing is decoded, so nothing can fail to decode.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import pathlib
import select
import signal
import time
from collections.abc import Iterable
from typing import BinaryIO, cast

from .descriptor_limit import advice
from .failure import LaunchError

_LONGEST_LINE = 64 * 1024
_PROGRESS_SECONDS = 1.0
_MESSAGE_SECONDS = 1.0

# Colours of the prefixes: bright enough on dark and light backgrounds; red is left to errors.
_COLOURS = (36, 33, 32, 35, 34)


class LineSplitter:
    """Cuts a stream into lines, in bounded memory.

    A progress bar, which rewrites its line with carriage returns, gives its newest state once a second, and its last
    one when the line ends.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._next_progress = 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that `data` completes, without their ends. `now` is in seconds."""
        self._buffer += data
        lines = []
        end = self._buffer.find(b"\n")
        start = 0
        while end >= 0:
            lines.append(_last_state(bytes(self._buffer[start:end])))
            start = end + 1
            end = self._buffer.find(b"\n", start)
        del self._buffer[:start]
        # A return at the very end may be the first half of "\r\n".
        rewrite = self._buffer.rfind(b"\r", 0, -1)
        if rewrite >= 0:
            state = _last_state(bytes(self._buffer[:rewrite]))
            del self._buffer[: rewrite + 1]
            if state and now >= self._next_progress:
                self._next_progress = now + _PROGRESS_SECONDS
                lines.append(state)
        while len(self._buffer) > _LONGEST_LINE:
            lines.append(bytes(self._buffer[:_LONGEST_LINE]))
            del self._buffer[:_LONGEST_LINE]
        return lines

    def flush(self) -> list[bytes]:
        """The unfinished last line, if there is one."""
        rest = _last_state(bytes(self._buffer))
        self._buffer.clear()
        return [rest] if rest else []


def _last_state(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Printer:
    """Writes lines with their prefix. Colours only where the stream is a terminal and NO_COLOR is unset."""

    def __init__(self, program: str = "bpslaunch") -> None:
        """`program`: whose own messages those of `say` are."""
        self._program = program
        self.timestamps = False  # the time in front of each line
        self._colour: dict[str, int] = {}

    def text(self, name: str, descriptor: int, lines: Iterable[bytes]) -> bytes:
        """These lines of `name` with their prefix, for what is open as `descriptor`."""
        prefix = self._prefix(name, descriptor)
        return b"".join(prefix + line + b"\n" for line in lines)

    def message(self, text: str) -> bytes:
        """A message of the launcher itself, for standard error."""
        return self.text(self._program, 2, (line.encode(errors="replace") for line in text.splitlines()))

    def result(self, line: str) -> None:
        """A line of output of the launcher itself, as it is. LaunchError if it cannot be written."""
        try:
            _write_all(1, _as_given(line) + b"\n")
        except OSError as error:
            code = 128 + signal.SIGPIPE if error.errno == errno.EPIPE else 1
            raise LaunchError(f"the output cannot be written: {error.strerror}", code) from None

    def say(self, text: str) -> None:
        """Writes a message of the launcher itself; it is dropped if its reader has gone or hangs."""
        with contextlib.suppress(OSError):
            _write_all(2, self.message(text), _MESSAGE_SECONDS)

    def _prefix(self, name: str, descriptor: int) -> bytes:
        text = f"{name}: " if name == self._program else f"[{name}] "
        if self.timestamps:
            now = datetime.datetime.now()
            text = f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03} {text}"
        if not os.isatty(descriptor) or os.environ.get("NO_COLOR"):
            return text.encode()
        colour = (
            1 if name == self._program else self._colour.setdefault(name, _COLOURS[len(self._colour) % len(_COLOURS)])
        )
        return f"\033[{colour}m{text}\033[0m".encode()


def _as_given(line: str) -> bytes:
    """Words of a command line, and values of variables, need not be text."""
    try:
        return os.fsencode(line)
    except UnicodeEncodeError:  # from another host
        return line.encode(errors="replace")


def _write_all(descriptor: int, data: bytes, seconds: float | None = None) -> None:
    """TimeoutError, with a part written, if the reader does not take it within `seconds`."""
    view = memoryview(data)
    deadline = None if seconds is None else time.monotonic() + seconds
    while view:
        # Writable means that this much can be written without waiting, so a signal is never kept waiting either.
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([], [descriptor], [], left)[1]:
            raise TimeoutError(errno.ETIMEDOUT, "its reader is slow")
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]


class OutputFiles:
    """`<folder>/<role><rank>.stdout` and `.stderr`: what a process wrote, byte for byte. A job that Slurm has started
    again adds to them."""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)
        self._mode = "wb" if os.environ.get("SLURM_RESTART_COUNT", "0") in ("", "0") else "ab"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"--output-dir {folder}: {error.strerror}") from None

    def open(self, name: str, stream: str) -> BinaryIO:
        """The file of one stream of one process; LaunchError if it cannot be written."""
        path = self._folder / f"{name.replace(' ', '')}.{stream}"
        try:
            return cast(BinaryIO, open(path, self._mode, buffering=0))
        except OSError as error:
            raise LaunchError(f"{path}: {error.strerror}{advice(error)}") from None
