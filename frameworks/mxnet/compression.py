"""Compression of gradients on their way, for MXNet; see byteps.compression."""

from __future__ import annotations

from typing import Any

import numpy as np
from byteps.compression import CastCompressor, Compressor, NoneCompressor, check_compression

import mxnet as mx

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor", "check_compression", "from_params"]


class FP16Compressor(CastCompressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, at most 65504."""

    narrow = np.float16
    wide = (np.float32, np.float64)

    @staticmethod
    def cast(tensor: mx.nd.NDArray, dtype: Any) -> mx.nd.NDArray:
        """Of CastCompressor."""
        return tensor.astype(dtype, copy=False)


class Compression:
    """The choices: `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor


def from_params(params: dict[str, Any] | None) -> type[Compressor]:
    """The compression that BytePS's `compression_params` ask for.

    Raises:
        NotImplementedError: a compressor of the core, which this release has none of.
        ValueError: an unknown key.
    """
    params = params or {}
    unknown = set(params) - {"fp16", "compressor", "ef", "momentum", "scaling", "k", "seed", "partition", "normalize"}
    if unknown:
        raise ValueError(f"compression_params has unknown keys: {', '.join(sorted(map(str, unknown)))}")
    # The other keys, such as the k=1.0 of BytePS's example, say how; without these nothing is asked for.
    asked = [key for key in ("compressor", "ef", "momentum") if params.get(key)]
    if asked:
        raise NotImplementedError(
            f"compression_params asks for {', '.join(f'{key}={params[key]!r}' for key in asked)}; this release "
            "compresses to float16 alone: compression_params={'fp16': True}"
        )
    return FP16Compressor if params.get("fp16") else NoneCompressor
