"""Whether something besides the parameter holds the memory of its gradient.

A trainer that keeps its gradients in one flat buffer, or that has kept the tensors themselves, reads the sums there and
zeroes them there: they must stay where they are.

Autograd gives a parameter views, too: of the gradient that the rest of the backward pass still reads, or that other
parameters have as well, where the forward pass has added an unsqueeze(), a reshape() or a part of a cat(). Nothing may
be written there before the backward pass is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch


def _objects(parameter: torch.Tensor) -> int:
    """How many references Python has to the gradient's object, a few of this function's own among them."""
    return sys.getrefcount(parameter.grad)


def _tensors_of(storage: torch.UntypedStorage) -> int:
    """How many tensors have the storage, and a few references of the caller's own."""
    count: Callable[[int], int] = torch._C._storage_Use_Count
    return count(storage._cdata)


def _storages(tensor: torch.Tensor) -> int:
    return _tensors_of(tensor.untyped_storage())


def _unheld() -> tuple[int, int] | None:
    """Both counts of a gradient that its parameter alone holds; None: this PyTorch cannot tell."""
    if not hasattr(torch._C, "_storage_Use_Count"):
        return None
    parameter = torch.zeros(1, device="cpu", requires_grad=True)
    parameter.grad = torch.zeros(1, device="cpu")
    return _objects(parameter), _storages(parameter.grad)


def _objects_of_entry(tensors: Sequence[torch.Tensor], index: int) -> int:
    """How many references Python has to an entry, that of the sequence and a few of this function's own among them."""
    return sys.getrefcount(tensors[index])


# Measured, not written down: Python and PyTorch count their own references differently from release to release.
_UNHELD = _unheld()
_UNHELD_ENTRY = _objects_of_entry([torch.zeros(1, device="cpu")], 0)


def others_have(storage: torch.UntypedStorage) -> bool:
    """Whether other tensors than the gradient of a parameter have its storage. The caller has none."""
    return _UNHELD is None or _tensors_of(storage) > _UNHELD[1]


def _has_storage_of_its_own(gradient: torch.Tensor) -> bool:
    storage = gradient.untyped_storage()
    whole = storage.nbytes() == gradient.numel() * gradient.element_size()
    # Memory of NumPy, of a file, or of another process has holders that PyTorch does not count.
    return whole and storage.resizable() and not storage.is_shared()


def holds_gradient_alone(parameter: torch.Tensor, ours: Sequence[torch.Tensor] = ()) -> bool:
    """Whether the parameter alone can reach the memory of its gradient. The caller has no reference to it either, but
    for `ours`: tensors that it has made itself, each with a storage of its own."""
    if _UNHELD is None or parameter.grad is None or _storages(parameter.grad) > _UNHELD[1]:
        return False
    if any(tensor is parameter.grad for tensor in ours):
        return _objects(parameter) <= _UNHELD[0] + 1
    return _objects(parameter) <= _UNHELD[0] and _has_storage_of_its_own(parameter.grad)


def holds_entry_alone(tensors: Sequence[torch.Tensor], index: int) -> bool:
    """Whether nothing has a reference to an entry, or a part of its memory, but the sequence. The entry is no gradient
    at the moment."""
    unheld = _UNHELD is not None and _storages(tensors[index]) <= _UNHELD[1]
    return unheld and _objects_of_entry(tensors, index) <= _UNHELD_ENTRY
