"""The documented formula of a reduction, in NumPy alone, for comparison bit by bit; as numpy_reduction.py, without
PyTorch: bfloat16 is that of ml_dtypes, where it is installed.
"""

from __future__ import annotations

import functools

import numpy as np

OPS = ["Sum", "Average", "Min", "Max", "Product"]
DTYPES = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")]
try:
    import ml_dtypes

    DTYPES.append(np.dtype(ml_dtypes.bfloat16))
except ImportError:
    pass


def _is_half(dtype: np.dtype) -> bool:
    return dtype.kind not in "iu" and dtype.itemsize == 2


def make(dtype: np.dtype, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Values of the dtype's whole range that overflow, round and, for floats, are NaN or infinite here and there."""
    generator = np.random.default_rng([rank, dtype.itemsize, ord(dtype.kind[0]), len(shape)])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max, size=shape, endpoint=True, dtype=dtype)
    values = np.asarray(generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, size=shape))
    if values.size > 8:
        flat = values.reshape(-1)
        flat[0] = float("inf")
        flat[1] = -0.0 if rank % 2 else 0.0
        flat[2 + rank % 3] = float("nan")
    return values.astype(dtype)


def _min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == a) & ((b < a) | (b != b)), b, a)


def _max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == a) & ((b > a) | (b != b)), b, a)


_STEPS = {"Sum": np.add, "Average": np.add, "Min": _min, "Max": _max, "Product": np.multiply}


def reduce(inputs: list[np.ndarray], op: str) -> np.ndarray:
    """The result, on every rank."""
    dtype = inputs[0].dtype
    arrays = [array.astype(np.float32) if _is_half(dtype) else array for array in inputs]
    with np.errstate(all="ignore"):
        total = functools.reduce(_STEPS[op], arrays)
        if op == "Average":
            count = np.asarray(len(arrays)).astype(total.dtype)
            total = np.floor_divide(total, count) if total.dtype.kind in "iu" else np.true_divide(total, count)
        return np.asarray(total).reshape(inputs[0].shape).astype(dtype)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in every bit, except that any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind not in "iu":
        if not np.array_equal(a != a, b != b):
            return False
        a, b = (np.where(array != array, np.zeros_like(array), array) for array in (a, b))
    return a.tobytes() == b.tobytes()
