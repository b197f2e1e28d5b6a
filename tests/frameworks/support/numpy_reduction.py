"""The documented formula of a reduction, in NumPy, for comparison bit by bit.

A left fold over the ranks in order; 16-bit floats are folded in float32 and rounded once; Average divides before that
rounding: true division for floats, towards minus infinity for integers. bfloat16, which NumPy lacks, goes through
torch's conversions.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
OPS = ["Sum", "Average", "Min", "Max", "Product"]

_HALVES = (torch.float16, torch.bfloat16)


def make(dtype: torch.dtype, shape: tuple[int, ...], rank: int) -> torch.Tensor:
    """Values of the dtype's whole range that overflow, round and, for floats, are NaN or infinite here and there."""
    generator = np.random.default_rng([rank, DTYPES.index(dtype), len(shape)])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        values = generator.integers(info.min, info.max, size=shape, endpoint=True)
        return torch.tensor(values, dtype=dtype).reshape(shape)
    values = generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, size=shape)
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if tensor.numel() > 8:
        flat = tensor.view(-1)
        flat[0] = float("inf")
        flat[1] = -0.0 if rank % 2 else 0.0
        flat[2 + rank % 3] = float("nan")
    return tensor.to(dtype)


def _min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == a) & ((b < a) | (b != b)), b, a)


def _max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == a) & ((b > a) | (b != b)), b, a)


_STEPS = {"Sum": np.add, "Average": np.add, "Min": _min, "Max": _max, "Product": np.multiply}


def reduce(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """The result, on every rank."""
    dtype = inputs[0].dtype
    arrays = [(tensor.float() if dtype in _HALVES else tensor).numpy() for tensor in inputs]
    with np.errstate(all="ignore"):
        total = functools.reduce(_STEPS[op], arrays)
        if op == "Average":
            count = np.asarray(len(arrays)).astype(total.dtype)
            total = np.floor_divide(total, count) if total.dtype.kind in "iu" else np.true_divide(total, count)
    return torch.from_numpy(np.ascontiguousarray(total)).reshape(inputs[0].shape).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, except that any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.is_floating_point:
        if not torch.equal(a.isnan(), b.isnan()):
            return False
        a, b = (torch.where(tensor.isnan(), torch.zeros_like(tensor), tensor) for tensor in (a, b))
    return _bytes(a) == _bytes(b)


def _bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()
