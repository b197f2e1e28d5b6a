"""Parameters that lazy modules (torch.nn.LazyLinear) have not made yet: they have no shape before a forward pass."""

from __future__ import annotations

import torch
from torch.nn.parameter import UninitializedTensorMixin


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether it has no shape and no values yet."""
    return isinstance(tensor, UninitializedTensorMixin)


def uninitialized(name: str) -> str:
    """What to say of such a one."""
    return (
        f"{name} is uninitialized: a lazy module makes its parameters in its first forward pass. Call the model once "
        "before"
    )
