"""What a step of an optimizer changes besides parameters and their state: its options and its attributes.

Both count for all parameters at once. Two looks, one before and one after, tell what has changed.
"""

from __future__ import annotations

import collections
import itertools
import logging
import random
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

# What has no value of its own, only writes, or draws random numbers.
_WITHOUT_VALUE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type),
    *(logging.Logger, logging.Handler, random.Random, torch.Generator),
)


def _frozen(value: Any) -> Any:
    """The value of an option, which other code cannot change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_frozen(item) for item in value)
    if type(value) is dict:
        return {key: _frozen(item) for key, item in value.items()}
    return value


def options(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The options of groups of parameters as they are now."""
    return [{key: _frozen(value) for key, value in group.items() if key != "params"} for group in groups]


def _equal(a: Any, b: Any) -> bool:
    """Whether a value is as it was. NaN is as NaN."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return False
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) in (list, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    if type(a) is dict:
        return type(b) is dict and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return a is b or bool(a == b) or bool(a != a and b != b)


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what has another value, is new or is gone."""
    return sorted(
        str(key)
        for key in before.keys() | after.keys()
        if key not in before or key not in after or not _equal(before[key], after[key])
    )


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of a class of the program's keeps."""
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _leaves(path: str, value: Any, own: set[int], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """All values within, by their paths. `own`: ids of the parameters; `seen`: of what was looked into."""
    if isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield path, value
    elif isinstance(value, itertools.count):
        yield path, repr(value)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield path, (str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, (set, frozenset)):
        yield path, frozenset(value)
    elif isinstance(value, _WITHOUT_VALUE) or id(value) in seen:
        return
    else:
        seen.add(id(value))
        within: Iterable[tuple[str, Any]]
        if isinstance(value, collections.abc.Mapping):
            # What is kept for a parameter is its state.
            within = [
                (f"{path}[{key!r}]", item)
                for key, item in value.items()
                if not isinstance(key, torch.Tensor) and key not in own
            ]
        elif isinstance(value, (list, tuple, collections.deque)):
            within = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        else:
            within = [(f"{path}.{name}", item) for name, item in _members(value)]
        for name, item in within:
            yield from _leaves(name, item, own, seen)


def attributes(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, dict[str, Any]]:
    """The values of all its attributes as they are now, but of param_groups and what it keeps for these parameters."""
    own = {id(parameter) for parameter in parameters}
    return {
        name: dict(_leaves(name, value, own, {id(optimizer)}))
        for name, value in vars(optimizer).items()
        if name not in ("param_groups", "state", "step")
    }


def changed_attributes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """The names of attributes of which something has changed."""
    return sorted(name for name in before.keys() | after.keys() if changed(before.get(name, {}), after.get(name, {})))
