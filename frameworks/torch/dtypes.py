"""The data types of PyTorch that can be sent, their numbers in the C ABI, and which reductions they have."""

from byteps import _native, arguments
from byteps.reduce_op import ReduceOp

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


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """What its gradients are, if autograd makes them: PyTorch 2.10 and later knows `grad_dtype`, which the ranks set
    alike."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype


def check_reduction(op: ReduceOp, dtype: torch.dtype) -> None:
    """Refuses, as the library does, a reduction that has no meaning: before an unnamed operation has its number, so
    that those stay alike on all ranks. Raises InvalidArgumentError."""
    arguments.check_reduction(op, str(dtype).removeprefix("torch."))
