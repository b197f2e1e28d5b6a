"""The first words of a coordinator: whether it is one, and of which release.

A coordinator that accepts a connection sends a Challenge at once (core/control/control.proto). Only this much of the
protocol is understood here: a frame's head, and the few fields that matter before a job.
"""

from __future__ import annotations

import dataclasses
import socket
import struct

_MAGIC = b"BPSC"
_HEAD = struct.Struct("<4sHHI")
_LARGEST = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclasses.dataclass(frozen=True)
class Greeting:
    """What the Challenge says."""

    release: str
    token_required: bool


def read_greeting(connection: socket.socket) -> Greeting:
    """Reads the greeting; OSError (a timeout too) or ValueError if what answers is no coordinator."""
    magic, _version, _reserved, length = _HEAD.unpack(_read(connection, _HEAD.size))
    if magic != _MAGIC or length > _LARGEST:
        raise ValueError("it does not speak the control protocol of BytePS")
    envelope = _fields(_read(connection, length))
    challenge = _fields(_bytes(envelope.get(1)))
    release = _bytes(challenge.get(4)).decode(errors="replace")
    return Greeting(release, bool(challenge.get(5, 0)))


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ValueError("it closed the connection without a greeting")
        data += more
    return data


def _bytes(value: int | bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("its greeting is incomplete")
    return value


def _fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message, by number; the last of a repeated one."""
    fields: dict[int, int | bytes] = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 == _VARINT:
            fields[tag >> 3], position = _varint(message, position)
            continue
        if tag & 7 == _BYTES:
            length, position = _varint(message, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(tag & 7, len(message) + 1)
        if length > len(message) - position:
            raise ValueError("its greeting cannot be read")
        fields[tag >> 3] = message[position : position + length]
        position += length
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(message):
            break
        value |= (message[position] & 0x7F) << shift
        position += 1
        if not message[position - 1] & 0x80:
            return value, position
    raise ValueError("its greeting cannot be read")
