"""Checks of the arguments that the functions of several modules take: what is wrong is said in their words."""

from __future__ import annotations

import operator
from typing import Any

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


def tensor_name(name: Any) -> str:
    """The name of an operation. Raises ValueError for what cannot be one."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}; it must be a string that is not empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name is {name!r}; it must be text that can be written in UTF-8") from None
    return name


def root(session: Session, root_rank: Any) -> int:
    """The rank that a broadcast comes from. Raises TypeError, ValueError."""
    size = session.native.info()["size"]
    rank = whole_number("root_rank", root_rank)
    if not 0 <= rank < size:
        raise ValueError(f"root_rank is {rank}; the job has ranks 0 to {size - 1}")
    return rank
