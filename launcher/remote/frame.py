"""What bpslaunch and its agents on other hosts say to each other, as frames on a stream of bytes.

A frame is one byte of kind, four bytes of length, and the payload: a message (a JSON object; "do" names what bpslaunch
asks for, "event" what the agent reports) or output of a process (its number, the descriptor, the bytes). What comes
from the agent begins with GREETING: a shell's profile may print something before it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

# Of this protocol; bpslaunch and agent compare releases, too.
VERSION = 2
GREETING = b"\0byteps-agent\n"

_HEADER = struct.Struct("!cI")
_SOURCE = struct.Struct("!IB")
_MESSAGE, _OUTPUT = b"M", b"O"
_LONGEST = 64 << 20

# Bytes of one output stream of a host that may be on their way, and after how many bpslaunch says that it has them. So
# no event waits behind more output than that, however slow the reader of our output is.
WINDOW_BYTES = 256 * 1024
TAKEN_BYTES = WINDOW_BYTES // 4

# Seconds between two signs of life, and how long none may come: then the other side, or the network, is gone.
BEAT_SECONDS = 1.0
SILENCE_SECONDS = 5.0
# Who comes round that much later than planned was stopped (SIGSTOP, a suspended job), and could not hear: the silence
# is his own.
STOPPED_SECONDS = 2.0


class FrameError(Exception):
    """The other side does not speak this protocol."""


def message(**fields: Any) -> bytes:
    """A frame with a message."""
    payload = json.dumps(fields).encode()
    return _HEADER.pack(_MESSAGE, len(payload)) + payload


def output(number: int, descriptor: int, data: bytes) -> bytes:
    """A frame with output of process `number`; without data: the stream has ended."""
    return _HEADER.pack(_OUTPUT, _SOURCE.size + len(data)) + _SOURCE.pack(number, descriptor) + data


class Decoder:
    """Cuts a stream into frames."""

    def __init__(self, greeted: bool) -> None:
        """`greeted`: the stream has no GREETING, or it was read."""
        self.greeted = greeted
        self.noise = b""  # what came before it
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | tuple[int, int, bytes]]:
        """The messages, and outputs (number, descriptor, data), that `data` completes; FrameError."""
        self._buffer += data
        if not self.greeted and not self._greet():
            return
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if kind not in (_MESSAGE, _OUTPUT) or length > _LONGEST:
                raise FrameError(f"not a frame: {bytes(self._buffer[:40])!r}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield _decoded(kind, payload)

    def _greet(self) -> bool:
        found = self._buffer.find(GREETING)
        if found < 0:
            self.noise = bytes(self._buffer[-4096:])
            return False
        self.noise = bytes(self._buffer[:found][-4096:])
        del self._buffer[: found + len(GREETING)]
        self.greeted = True
        return True


def _decoded(kind: bytes, payload: bytes) -> dict[str, Any] | tuple[int, int, bytes]:
    try:
        if kind == _OUTPUT:
            number, descriptor = _SOURCE.unpack_from(payload)
            return number, descriptor, payload[_SOURCE.size :]
        value = json.loads(payload)
    except (ValueError, struct.error) as error:
        raise FrameError(f"not a frame: {error}") from None
    if not isinstance(value, dict):
        raise FrameError(f"not a message: {payload[:40]!r}")
    return value
