"""The memory that an operation reads or writes for a tensor.

The library takes row-major host memory without gaps. A CPU tensor that is such memory is used in place, without a copy.
Any other (transposed, sliced, channels-last) is staged through a copy in host memory.

CUDA tensors are taken where they are (device_streams.py). Tensors on other devices, those of ROCm among them, are
staged, too, and copying from and to the device waits for it.
"""

from byteps.torch.dtypes import dtype_code
from byteps.torch.lazy_parameters import is_lazy, uninitialized

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def check_layout(tensor: torch.Tensor) -> None:
    """Refuses what is no tensor with one value per element. Raises TypeError, ValueError."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if is_lazy(tensor):
        raise ValueError(uninitialized("the tensor"))
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{tensor.layout} tensors cannot be sent; convert with to_dense(), make dense gradients (sparse=False), or "
            "let DistributedOptimizer do it (sparse_as_dense=True)"
        )


def check_dense(tensor: torch.Tensor) -> None:
    """Refuses what has no one value per element in memory, or values that cannot be sent: before an operation has its
    name, so that the numbers of unnamed ones stay alike on all ranks. Raises TypeError, ValueError."""
    check_layout(tensor)
    dtype_code(tensor.dtype)
    if tensor.is_meta:
        raise ValueError('the tensor is on the device "meta": it has no values that could be sent')
    if type(tensor) not in _ORDINARY and is_traceable_wrapper_subclass(tensor):
        raise ValueError(
            f"a {type(tensor).__name__} has no memory of its own, but tensors within it; give one of them (to_local() "
            "of a DTensor)"
        )


def elements_share_memory(tensor: torch.Tensor) -> bool:
    """Whether several elements of a dense tensor are one, as in the result of expand()."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return False
    return tensor.numel() > 0 and any(
        stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape)
    )


def check_writable(tensor: torch.Tensor) -> None:
    """Refuses a tensor in which several elements share memory. Raises ValueError."""
    if elements_share_memory(tensor):
        raise ValueError(
            "the tensor's elements share memory (expand()?), so it cannot be written in place; use a clone()"
        )


def is_wire_ready(tensor: torch.Tensor) -> bool:
    """Whether the library can use the tensor's own memory."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def empty_buffer(like: torch.Tensor) -> torch.Tensor:
    """Row-major host memory for a tensor's values, not yet set."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.device.type == "cuda")


def staged_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Row-major host memory with the tensor's values, for one that is not wire-ready."""
    buffer = empty_buffer(tensor)
    buffer.copy_(tensor.detach())
    return buffer
