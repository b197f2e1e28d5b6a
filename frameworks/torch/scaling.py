"""What Horovod's reductions do to the numbers before and after.

The library multiplies: floats in their own dtype (16-bit ones in float32, rounded once), integers in float64, truncated
towards zero and kept within their range. The average of integers is truncated, too, where push_pull() rounds it down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.reduce_op import Average, ReduceOp, Sum
from byteps.torch.dtypes import check_reduction
from byteps.torch.process_set import ProcessSet

import torch


def factor_number(argument: str, value: Any) -> float:
    """A factor as a float. Raises TypeError for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{argument} is {value!r}; it must be a number") from None


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def check_scaling(op: ReduceOp, dtype: torch.dtype, factors: tuple[Any, Any]) -> tuple[float, float]:
    """The factors before and after a reduction, both of which a dtype must allow. To be called before an operation has
    its number, too. Raises TypeError, ValueError."""
    before = factor_number("prescale_factor", factors[0])
    behind = factor_number("postscale_factor", factors[1])
    if dtype is torch.bool and (op is Average or before != 1.0 or behind != 1.0):
        raise ValueError(
            "a tensor of torch.bool cannot be averaged or scaled; use op=Sum (or), Product (and), Min or Max"
        )
    check_reduction(op, dtype)
    return before, behind


class Reduction:
    """What the library computes, and what is done to the result behind it.

    Attributes:
        op: the reduction.
        scale: what the library multiplies inputs and result by; None: neither.
        after: what is to be done to the result, in place; None: nothing.
    """

    def __init__(self, op: ReduceOp, dtype: torch.dtype, factors: tuple[Any, Any], process_set: ProcessSet) -> None:
        """Raises TypeError, ValueError."""
        before, behind = check_scaling(op, dtype, factors)
        self.op = op
        self.after: Callable[[torch.Tensor], None] | None = None
        if op is Average and _is_integer(dtype):
            self.op = Sum
            contributors = process_set.size() or 1
            if behind == 1.0:
                # Not by a factor: 49 times 1/49 is less than 1.
                def divide(result: torch.Tensor) -> None:
                    result.div_(contributors, rounding_mode="trunc")

                self.after = divide
            else:
                behind /= contributors
        self.scale = None if before == behind == 1.0 else (before, behind)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a collective that say so."""
        return {"op": self.op} if self.scale is None else {"op": self.op, "scale": self.scale}
