"""Checks of the arguments that the functions of several modules take: what is wrong is said in their words."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from byteps.errors import InvalidArgumentError, StatusCode
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Adasum, Average, BitAnd, BitOr, BitXor, Max, Min, ReduceOp
from byteps.session import Session


def whole_number(argument: str, value: Any) -> int:
    """The value of an argument as an int. Raises TypeError for what is none, 1.0 included."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} is {value!r}; it must be a whole number") from None


def priority_number(priority: Any) -> int:
    """A priority as the library takes it. Raises TypeError, ValueError."""
    number = whole_number("priority", priority)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"priority is {number}; it must be one of -2**63 to 2**63 - 1")
    return number


def _why_not(op: ReduceOp, dtype: str) -> str:
    is_complex = dtype.startswith("complex")
    floating = dtype.startswith(("float", "bfloat"))
    if op is Adasum and not floating:
        return "it is of floating-point numbers"
    if op in (Min, Max) and is_complex:
        return "complex numbers have no order"
    if op in (BitAnd, BitOr, BitXor) and (floating or is_complex):
        return "bitwise operations are of integers and bools"
    if op is Average and dtype == "bool":
        return "a bool has no fractions"
    return ""


def reduction_fault(op: ReduceOp, dtype: str) -> str:
    """Why a reduction has no meaning for a data type, in a sentence; "" where it has one.

    Args:
        op: the reduction.
        dtype: what NumPy calls the data type ("float32", "bfloat16").
    """
    why = _why_not(op, dtype)
    called = op.name.lower().replace("bit", "bitwise ")
    return f"{called} of {dtype} has no meaning: {why}" if why else ""


def check_reduction(op: ReduceOp, dtype: str) -> None:
    """Refuses, as the library does, a reduction that has no meaning: before an unnamed operation has its number, so
    that those stay alike on all ranks. Arguments are reduction_fault()'s. Raises InvalidArgumentError."""
    _refuse(reduction_fault(op, dtype))


def splits_fault(splits: Sequence[int] | None, rows: int, ranks: int) -> str:
    """What is wrong with how an alltoall divides its rows, in a sentence; "" where nothing is.

    Args:
        splits: how many rows go to each rank; None: equal numbers.
        rows: how many there are.
        ranks: how many take part.
    """
    if splits is None:
        return f"{rows} rows cannot be divided by {ranks} ranks: give splits" if rows % ranks != 0 else ""
    if len(splits) != ranks:
        return f"there are {len(splits)} splits for {ranks} ranks; each rank has one"
    if min(splits) < 0 or sum(splits) != rows:
        return f"the splits, {list(splits)}, must not be negative, and add up to {rows} rows"
    return ""


def check_splits(splits: Sequence[int] | None, rows: int, ranks: int) -> None:
    """Refuses splits as the library does; see splits_fault(). Ranks may have different ones, so this is to be called
    before an operation has its number, which the other ranks' meets. Raises InvalidArgumentError."""
    _refuse(splits_fault(splits, rows, ranks))


def _refuse(fault: str) -> None:
    if fault:
        raise InvalidArgumentError(fault, StatusCode.INVALID_ARGUMENT, retryable=False)


def predivide_factor(factor: Any, op: ReduceOp) -> float:
    """The argument gradient_predivide_factor of optimizers and tapes as a float.

    Raises:
        TypeError: no number.
        ValueError: not positive, infinite or no number (NaN), with which gradients would become NaN; or not 1 with
            another `op` than Average.
    """
    try:
        number = float(factor)
    except (TypeError, ValueError):
        raise TypeError(f"gradient_predivide_factor is {factor!r}; it must be a number") from None
    if number != 1.0 and op is not Average:
        raise ValueError(f"gradient_predivide_factor is {factor!r} and op={op.name}; it needs Average")
    if not number > 0 or math.isinf(number):
        raise ValueError(f"gradient_predivide_factor is {factor!r}; it must be a positive number")
    return number


def check_passes(passes: Any) -> None:
    """Checks the argument `backward_passes_per_step`. Raises ValueError."""
    if not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step is {passes!r}; it must be a positive integer")


def check_groups(num_groups: Any, groups: Any = None) -> None:
    """Checks the arguments `num_groups` and `groups` of optimizers and tapes that send each gradient when it is there,
    and so have no use for groups of them. Raises ValueError for what are no groups.

    Args:
        num_groups: how many groups, 0 for none.
        groups: None, the same number, or a list of lists of variables, each variable in one of them.
    """
    for argument, value in (("num_groups", num_groups), ("groups", groups)):
        if isinstance(value, int) and (isinstance(value, bool) or value < 0):
            raise ValueError(f"{argument} is {value!r}; it must be a whole number that is not negative")
    if not isinstance(num_groups, int):
        raise ValueError(f"num_groups is {num_groups!r}; it must be a whole number that is not negative")
    if groups is None or isinstance(groups, int):
        return
    # Keras 3's variables are of no class of the framework's; all have assign(), which tensors and arrays have not.
    if not isinstance(groups, list) or not all(
        isinstance(group, (list, tuple)) and all(hasattr(member, "assign") for member in group) for group in groups
    ):
        raise ValueError(f"groups is {groups!r}; it must be a whole number or a list of lists of variables")
    members = [id(member) for group in groups for member in group]
    if len(set(members)) != len(members):
        raise ValueError("groups has a variable twice; each can be in one group")


def tensor_name(name: Any) -> str:
    """The name of an operation. Raises ValueError for what cannot be one."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}; it must be a string that is not empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name is {name!r}; it must be text that can be written in UTF-8") from None
    if "\0" in name:
        raise ValueError(f"name is {name!r}; it must not have a NUL character, where the library's names end")
    return name


def root(session: Session, root_rank: Any, process_set: ProcessSet = global_process_set) -> int:
    """The rank that a broadcast comes from: one of the process set's, where that is given. To be called before an
    operation has its number. Raises TypeError, ValueError."""
    size = session.native.info()["size"]
    rank = whole_number("root_rank", root_rank)
    if not 0 <= rank < size:
        raise ValueError(f"root_rank is {rank}; the job has ranks 0 to {size - 1}")
    if process_set is not global_process_set and rank not in (process_set.ranks or ()):
        raise ValueError(
            f"root_rank is {rank}; the process set has ranks {', '.join(map(str, process_set.ranks or ()))}"
        )
    return rank
