"""Compression of gradients on their way, for all backends of Keras."""

from __future__ import annotations

from typing import Any

from byteps.compression import check_compression


class Compressor:
    """A choice; what it does to a tensor is its backend's affair (byteps.keras.gradients)."""

    name = ""


class _None(Compressor):
    """Sends tensors as they are."""

    name = "none"


class _Fp16(Compressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, largest value
    65504."""

    name = "fp16"


class _Bf16(Compressor):
    """Sends float32 and float64 as bfloat16: half or a quarter of the bytes, the range of float32, 8 bits of
    precision."""

    name = "bf16"


class Compression:
    """What there is."""

    none = _None
    fp16 = _Fp16
    bf16 = _Bf16


def choice(compression: Any) -> str | None:
    """ "none", "fp16" or "bf16"; None for a compressor of a framework's own module. Raises TypeError."""
    if isinstance(compression, type) and issubclass(compression, Compressor) and compression.name:
        return compression.name
    check_compression(compression)
    return None
