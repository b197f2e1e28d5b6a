"""The class of a DistributedOptimizer: a subclass of the optimizer's own, made for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from byteps.basics import info
from byteps.session import current_session
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.process_set import ProcessSet, global_process_set
from byteps.torch.reducer import Reducer

import torch


def is_distributed(process_set: ProcessSet) -> bool:
    """Whether gradients of this rank have to be reduced: alone, or outside of the set, there is nothing to wait for."""
    if process_set is not global_process_set:
        return bool(process_set.included()) and (process_set.size() or 1) > 1
    job = info()
    return job.size > 1 or job.num_servers > 0


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, unnamed: str
) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters with the names of their gradients, most urgent first."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"{unnamed}.{index}", parameter) for index, parameter in enumerate(parameters)]

    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters must be a sequence of (name, parameter), such as model.named_parameters()")
    if any(not isinstance(name, str) or not isinstance(tensor, torch.Tensor) for name, tensor in named):
        raise ValueError(
            "named_parameters must have a string and a tensor in each entry, such as model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
    if twice:
        raise ValueError(f"named_parameters has names twice: {', '.join(twice)}")

    known = {parameter for _, parameter in named}
    missing = sum(parameter not in known for parameter in parameters)
    if missing:
        raise ValueError(
            f"named_parameters lacks {missing} of the optimizer's {len(parameters)} parameters; "
            "name all of them or none"
        )
    ours = set(parameters)
    result: dict[torch.Tensor, str] = {}
    for name, parameter in named:
        if parameter in ours:
            result.setdefault(parameter, "Gradient." + name)  # tied weights have several names; the first counts
    return [(name, parameter) for parameter, name in result.items()]


def named_gradients(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> tuple[str, list[tuple[str, torch.Tensor]]]:
    """What the names of parameters without one begin with, and the optimizer's parameters with the names of their
    gradients, most urgent first. Raises ValueError."""
    unnamed = f"Gradient.noname.{current_session().number('DistributedOptimizer')}"
    return unnamed, _names(optimizer, named_parameters, unnamed)


def make_distributed(
    optimizer: torch.optim.Optimizer,
    ours: type[BaseOptimizer],
    reducer: Reducer,
    names: list[tuple[str, torch.Tensor]],
    unnamed: str,
    attributes: Mapping[str, Any] | None = None,
    process_set: ProcessSet = global_process_set,
) -> BaseOptimizer:
    """An instance of a new class, named as the optimizer's: `ours` in front of it, with the optimizer's state.

    Args:
        reducer: of the gradients, which it gets here.
        names: the parameters whose gradients are sent, and the names of those.
        unnamed: what the names of later ones begin with.
        attributes: what the instance has besides.
        process_set: the reducer's.
    """
    subclass: Any = type(type(optimizer).__name__, (ours, type(optimizer)), {})
    distributed: BaseOptimizer = subclass.__new__(subclass)
    # Shares the state, the options and the hooks. A learning-rate scheduler wraps `step` of the instance it was made
    # for; that wrapper would hide ours.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed.__dict__.update(attributes or {})
    distributed._is_distributed = is_distributed(process_set)
    distributed._synchronized = False
    distributed._should_synchronize = True
    distributed._unnamed = unnamed
    distributed._names = {parameter: name.removeprefix("Gradient.") for name, parameter in names}
    distributed._reducer = reducer
    if distributed._is_distributed:
        for name, parameter in names:
            reducer.add(parameter, name)
        reducer.learn_order()
    weakref.finalize(distributed, reducer.close)
    return distributed
