"""Compression of gradients on their way: what a worker does to an array before it is sent, and undoes afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

import mxnet as mx


class Compressor:
    """The interface: `compress` gives what is sent and a context, `decompress` takes both back."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """What is sent instead of `tensor`, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """The result as the caller of push_pull expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, None]:
        """The array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: None) -> mx.nd.NDArray:
        """The array itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, largest value 65504.

    Servers sum float16 in float32 and round once. Other dtypes are sent as they are.
    """

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """The array as float16, and the dtype it had."""
        if np.dtype(tensor.dtype) in (np.float32, np.float64):
            return tensor.astype(np.float16), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """The array in the dtype it had."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """The choices: `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor


def check_compression(compression: Any) -> None:
    """Refuses what cannot compress. Raises TypeError."""
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise TypeError(
            f"compression is {compression!r}; it must be Compression.none, Compression.fp16 or another Compressor"
        )


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
    asked = [key for key in params if key != "fp16" and params[key]]
    if asked:
        raise NotImplementedError(
            f"compression_params asks for {', '.join(f'{key}={params[key]!r}' for key in asked)}; this release "
            "compresses to float16 alone: compression_params={'fp16': True}"
        )
    return FP16Compressor if params.get("fp16") else NoneCompressor
