"""What Horovod's operations do to the numbers before and after a reduction.

Floats are multiplied in their own dtype (16-bit ones in float32, rounded once). Integers are multiplied in float64 and
truncated towards zero; their average is truncated, too, where push_pull() rounds it down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.reduce_op import Average, ReduceOp, Sum

import torch


def factor_number(argument: str, value: Any) -> float:
    """A factor as a float. Raises TypeError for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{argument} is {value!r}; it must be a number") from None


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times the factor: a new tensor, or the tensor itself where the factor is 1. Raises ValueError."""
    if factor == 1.0:
        return tensor
    if tensor.dtype is torch.bool:
        raise ValueError("a tensor of torch.bool cannot be scaled")
    tensor = tensor.detach()
    if _is_integer(tensor.dtype):
        return tensor.to(torch.float64).mul_(factor).to(tensor.dtype)
    return tensor * factor


class Reduction:
    """What the servers compute, and what is done to the numbers before and behind."""

    def __init__(self, op: ReduceOp, dtype: torch.dtype, prescale: float, postscale: float, contributors: int) -> None:
        self.op = op
        self.prescale = prescale
        self._postscale = postscale
        self._divisor = 1
        if op is Average and _is_integer(dtype):
            self.op, self._divisor = Sum, contributors

    @property
    def after(self) -> Callable[[torch.Tensor], None] | None:
        """What is to be done to the result, in place; None: nothing."""
        if self._divisor == 1 and self._postscale == 1.0:
            return None
        return self._finish

    def _finish(self, result: torch.Tensor) -> None:
        if self._postscale == 1.0:
            result.div_(self._divisor, rounding_mode="trunc")
        else:
            result.copy_(scaled(result, self._postscale / self._divisor))
