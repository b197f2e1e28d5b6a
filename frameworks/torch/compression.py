"""Compression of gradients on their way: what a worker does to a tensor before it is sent, and undoes afterwards."""

from typing import Any

import torch


class Compressor:
    """The interface: `compress` gives what is sent and a context, `decompress` takes both back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent instead of `tensor`, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result as the caller of push_pull expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16: half or a quarter of the bytes, 11 bits of precision, largest value 65504.

    Servers sum float16 in float32 and round once. Other dtypes are sent as they are.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor as float16, and the dtype it had."""
        if tensor.dtype in (torch.float32, torch.float64):
            return tensor.to(torch.float16), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in the dtype it had."""
        return tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 as bfloat16: half or a quarter of the bytes, 8 bits of precision, the range of float32.

    Servers sum bfloat16 in float32 and round once. Other dtypes are sent as they are.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor as bfloat16, and the dtype it had."""
        if tensor.dtype in (torch.float32, torch.float64):
            return tensor.to(torch.bfloat16), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in the dtype it had."""
        return tensor.to(ctx)


class Compression:
    """The choices: `Compression.none`, `Compression.fp16` and `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(compression: Any) -> None:
    """Refuses what cannot compress. Raises TypeError."""
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise TypeError(
            f"compression is {compression!r}; it must be Compression.none, Compression.fp16, Compression.bf16 or "
            "another Compressor"
        )
