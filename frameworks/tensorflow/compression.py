"""Compression of tensors on their way, for TensorFlow; see byteps.compression."""

from __future__ import annotations

from byteps.compression import CastCompressor, Compressor, NoneCompressor, check_compression

import tensorflow as tf

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "check_compression",
]


class _CastCompressor(CastCompressor):
    wide = (tf.float32, tf.float64)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Of CastCompressor."""
        return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, at most 65504."""

    narrow = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: half or a quarter of the bytes, float32's range, 8 bits of precision."""

    narrow = tf.bfloat16


class Compression:
    """The choices: `Compression.none`, `Compression.fp16` and `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
