"""Compression of gradients on their way: what a worker does to an array before it is sent, and undoes afterwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Compressor:
    """The interface: `compress` gives what is sent and a context, `decompress` takes both back. Both are traced."""

    @staticmethod
    def compress(array: jax.Array) -> tuple[jax.Array, Any]:
        """What is sent instead of `array`, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(array: jax.Array, ctx: Any) -> jax.Array:
        """The result as the caller of push_pull expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends arrays as they are."""

    @staticmethod
    def compress(array: jax.Array) -> tuple[jax.Array, None]:
        """The array itself."""
        return array, None

    @staticmethod
    def decompress(array: jax.Array, ctx: None) -> jax.Array:
        """The array itself."""
        return array


class _Narrowing(Compressor):
    narrow: Any
    wide: tuple[Any, ...]

    @classmethod
    def compress(cls, array: jax.Array) -> tuple[jax.Array, Any]:
        """The array with fewer bits, and the dtype it had."""
        return (array.astype(cls.narrow) if array.dtype in cls.wide else array), array.dtype

    @classmethod
    def decompress(cls, array: jax.Array, ctx: Any) -> jax.Array:
        """The array in the dtype it had."""
        return array.astype(ctx)


class FP16Compressor(_Narrowing):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, largest value 65504.

    Servers sum float16 in float32 and round once. Other dtypes are sent as they are.
    """

    narrow = jnp.float16
    wide = (jnp.float32, jnp.float64)


class BF16Compressor(_Narrowing):
    """Sends float32 and float64 as bfloat16: the range of float32, 8 bits of precision. Otherwise as FP16Compressor."""

    narrow = jnp.bfloat16
    wide = (jnp.float32, jnp.float64)


class Compression:
    """The choices: `Compression.none`, `Compression.fp16` and `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(compression: Any) -> None:
    """Refuses what cannot compress. Raises TypeError."""
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise TypeError(
            f"compression is {compression!r}; it must be Compression.none, .fp16, .bf16 or another Compressor"
        )
