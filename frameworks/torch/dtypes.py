"""The data types of PyTorch that can be sent, their numbers in the C ABI, and which reductions they have."""

from byteps import _native
from byteps.errors import InvalidArgumentError, StatusCode
from byteps.reduce_op import Adasum, Average, BitAnd, BitOr, BitXor, Max, Min, ReduceOp

import torch

_CODES: dict[torch.dtype, int] = {
    torch.bool: _native.BOOL,
    torch.int8: _native.INT8,
    torch.int16: _native.INT16,
    torch.int32: _native.INT32,
    torch.int64: _native.INT64,
    torch.uint8: _native.UINT8,
    torch.float16: _native.FLOAT16,
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.bfloat16: _native.BFLOAT16,
    torch.complex64: _native.COMPLEX64,
    torch.complex128: _native.COMPLEX128,
}


def dtype_code(dtype: torch.dtype) -> int:
    """The number of a data type. Raises ValueError for one that cannot be sent."""
    code = _CODES.get(dtype)
    if code is None:
        known = ", ".join(str(known).removeprefix("torch.") for known in _CODES)
        raise ValueError(f"tensors of {dtype} cannot be sent; convert to one of {known}")
    return code


def _why_not(op: ReduceOp, dtype: torch.dtype) -> str:
    """Why a reduction of the data type has no meaning; "" where it has one."""
    if op is Adasum and not dtype.is_floating_point:
        return "it is of floating-point numbers"
    if op in (Min, Max) and dtype.is_complex:
        return "complex numbers have no order"
    if op in (BitAnd, BitOr, BitXor) and (dtype.is_floating_point or dtype.is_complex):
        return "bitwise operations are of integers and bools"
    if op is Average and dtype is torch.bool:
        return "a bool has no fractions"
    return ""


def check_reduction(op: ReduceOp, dtype: torch.dtype) -> None:
    """Refuses, as the library does, a reduction that has no meaning: before an unnamed operation has its number, so
    that those stay alike on all ranks. Raises InvalidArgumentError."""
    why = _why_not(op, dtype)
    if why:
        name = str(dtype).removeprefix("torch.")
        raise InvalidArgumentError(
            f"{op.name.lower()} of {name} has no meaning: {why}", StatusCode.INVALID_ARGUMENT, retryable=False
        )
