"""Compression of gradients on their way, as the frameworks share it: what a worker does to a tensor before it is sent,
and undoes afterwards."""

from __future__ import annotations

from typing import Any


class Compressor:
    """The interface: `compress` gives what is sent and a context, `decompress` takes both back. In graphs and programs
    both are traced."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What is sent instead of `tensor`, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result as the caller of push_pull expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        """The tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Sends tensors of the dtypes `wide` as the dtype `narrow`, others as they are. Servers sum float16 and bfloat16 in
    float32 and round once. Frameworks say what the dtypes are, and how to cast."""

    narrow: Any
    wide: tuple[Any, ...]

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype; itself if it has it."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor as it is sent, and the dtype it had."""
        return (cls.cast(tensor, cls.narrow) if tensor.dtype in cls.wide else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype it had."""
        return cls.cast(tensor, ctx)


def check_compression(compression: Any) -> None:
    """Refuses what cannot compress. Raises TypeError."""
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise TypeError(
            f"compression is {compression!r}; it must be one of Compression's, or have compress and decompress"
        )
