"""The reductions: what push_pull makes of the contributions of all workers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from byteps import _native


class ReduceOp(IntEnum):
    """A reduction. The result is the same on every rank, and its bits depend on the inputs alone.

    Average divides the sum by the number of contributors: true division for floats, rounded towards minus infinity for
    integers. Sums and products of integers wrap. Min and Max propagate NaN. The
    bitwise ones are of integers and bools. What has no meaning, such as the maximum of complex numbers, is refused.
    Adasum is Horovod's: of floating-point numbers; those of like directions count once, others add up.
    """

    Sum = _native.SUM
    Average = _native.AVERAGE
    Min = _native.MIN
    Max = _native.MAX
    Product = _native.PRODUCT
    BitAnd = _native.BIT_AND
    BitOr = _native.BIT_OR
    BitXor = _native.BIT_XOR
    Adasum = _native.ADASUM


Sum = ReduceOp.Sum
Average = ReduceOp.Average
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
BitAnd = ReduceOp.BitAnd
BitOr = ReduceOp.BitOr
BitXor = ReduceOp.BitXor

Adasum = ReduceOp.Adasum


def choose_op(op: Any, average: bool | None, adasum: bool = False) -> ReduceOp:
    """The reduction that the arguments `op` and `average` of push_pull ask for together. `average` None: the default,
    which is True. `adasum`: whether the operation takes Adasum.

    Raises:
        TypeError: a reduction stands in the place of `average`.
        ValueError: `op` is no reduction, or contradicts average=False.
        NotImplementedError: `op` is Adasum, which the operation does not take.
    """
    # It would be true, and so the average.
    if isinstance(average, ReduceOp):
        raise TypeError(
            f"average is {average.name}; it must be True or False. Give a reduction by name: op={average.name}"
        )
    if op is None:
        return Average if average is None or average else Sum
    try:
        chosen = op if type(op) is ReduceOp else ReduceOp(op)
    except ValueError:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join(item.name for item in ReduceOp)}") from None
    if chosen is Average and average is not None and not average:
        raise ValueError("op=Average contradicts average=False; give one of the two")
    if chosen is Adasum and not adasum:
        raise NotImplementedError("op=Adasum is not of this operation; push_pull and allreduce take it")
    return chosen
