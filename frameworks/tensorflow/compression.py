"""Compression of tensors on their way: what a worker does to a tensor before it is sent, and undoes afterwards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """The interface: `compress` gives what is sent and a context, `decompress` takes both back."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """What is sent instead of `tensor`, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The result as the caller of push_pull expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: None) -> tf.Tensor:
        """The tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Sends float32 and float64 as a shorter float, others as they are."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        """The tensor as the shorter float, and the dtype it had."""
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: tf.DType) -> tf.Tensor:
        """The tensor in the dtype it had."""
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, largest value 65504.

    Servers sum float16 in float32 and round once.
    """

    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: half or a quarter of the bytes, the range of float32, 8 bits of precision.

    Servers sum bfloat16 in float32 and round once.
    """

    dtype = tf.bfloat16


class Compression:
    """What there is."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(compression: Any) -> None:
    """Raises TypeError unless it has compress and decompress."""
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise TypeError(
            f"compression is {compression!r}; it must be one of Compression's, or have compress and decompress"
        )
