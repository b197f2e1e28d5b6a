"""Tensors in memory of BytePS's own, which the other workers of the host read and write where it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from byteps.session import Session, current_session

import torch


def _in_buffer(session: Session, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape is {tuple(shape)}; no extent may be negative")
    count = math.prod(shape)
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return _whole(torch.frombuffer(session.native.buffer(min(count * dtype.itemsize, sys.maxsize)), dtype=dtype), shape)


def _whole(flat: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of all of the storage, which holds the buffer: no view of another one, which it would hold, too."""
    return torch.empty(0, dtype=flat.dtype, device="cpu").set_(flat.untyped_storage(), 0, tuple(shape))


def empty(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """As torch.empty, of CPU memory that BytePS moves fastest (see byteps.buffer). The elements are zero.

    Worth it for tensors from 64 KiB on that are reduced again and again, in place or from one into another::

        gradient = bps.empty(1000, 1000)
        bps.push_pull_inplace(gradient, name="gradient")

    It is an ordinary tensor otherwise, and stays one after shutdown(). With shared memory (BYTEPS_SHM, the default) a
    forked child sees what its parent writes into it, as with Tensor.share_memory_().

    Args:
        size: extents, or one sequence of them.
        dtype: None: torch's default.
        requires_grad: as torch.empty's.

    Raises:
        ResourceExhaustedError: there is no memory.
        ValueError: before init(), or an extent is negative.
    """
    shape = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    tensor = _in_buffer(current_session(), shape, dtype or torch.get_default_dtype())
    return tensor.requires_grad_(requires_grad)


def empty_like(tensor: torch.Tensor, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """empty() of the shape and dtype of `tensor`."""
    return empty(tensor.shape, dtype=dtype or tensor.dtype, requires_grad=requires_grad)


class Arena:
    """Hands out tensors of one session's memory, several of them in each buffer: each costs a file descriptor."""

    CHUNK_BYTES = 32 << 20
    _ALIGNMENT = 4096

    def __init__(self, session: Session) -> None:
        self.session = session
        self._chunk: Any = None
        self._used = 0

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Row-major memory of the tensor's shape and dtype, with a storage of its own: who else has a part of it can be
        asked. Freed when nothing of its buffer is used any more."""
        count = tensor.numel()
        size = count * tensor.element_size()
        if size >= self.CHUNK_BYTES // 2:
            return _in_buffer(self.session, tensor.shape, tensor.dtype)
        if self._chunk is None or self._used + size > self.CHUNK_BYTES:
            self._chunk, self._used = self.session.native.buffer(self.CHUNK_BYTES), 0
        part = _whole(torch.frombuffer(self._chunk, dtype=tensor.dtype, count=count, offset=self._used), tensor.shape)
        self._used += -(-size // self._ALIGNMENT) * self._ALIGNMENT
        return part
