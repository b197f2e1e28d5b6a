"""Compression of gradients on their way, for PyTorch; see byteps.compression."""

from __future__ import annotations

from byteps.compression import CastCompressor, Compressor, NoneCompressor, check_compression

import torch

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "check_compression",
    "is_built_in",
]


class _CastCompressor(CastCompressor):
    wide = (torch.float32, torch.float64)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Of CastCompressor."""
        return tensor.to(dtype)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, at most 65504."""

    narrow = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: half or a quarter of the bytes, float32's range, 8 bits of precision."""

    narrow = torch.bfloat16


class Compression:
    """The choices: `Compression.none`, `Compression.fp16` and `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_BUILT_IN = frozenset((NoneCompressor, FP16Compressor, BF16Compressor))


def is_built_in(compression: type[Compressor]) -> bool:
    """Whether it is one of Compression's: where such a one sends a tensor itself, there is nothing to decompress."""
    return compression in _BUILT_IN
