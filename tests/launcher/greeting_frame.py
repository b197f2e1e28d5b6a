"""What a coordinator says first, made by hand from core/control/control.proto."""

from __future__ import annotations


def varint_field(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def bytes_field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def frame(release: bytes, magic: bytes = b"BPSC", control_version: int = 1, frame_version: int = 1) -> bytes:
    """A coordinator's first words, as core/control/control.proto has them."""
    versions = varint_field(2, control_version) + varint_field(3, 1)
    challenge = bytes_field(1, b"n" * 16) + versions + bytes_field(4, release) + varint_field(5, 1)
    envelope = bytes_field(1, challenge)
    return magic + frame_version.to_bytes(2, "little") + bytes(2) + len(envelope).to_bytes(4, "little") + envelope
