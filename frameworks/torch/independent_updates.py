"""Does an optimizer update each parameter by its own gradient and state alone?

It cannot be asked, so it is tried out: a copy of it takes steps with two of its parameters' shapes, together and one at
a time. An optimizer that scales by the norm of all gradients, say, comes to other values then.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

_STEPS = 2
# Of the gradients of the first and of the second one: what counts for both of them shows in the first.
_SIZES = (1e-3, 1e3)
_LARGEST = 1 << 20  # elements of a parameter that is tried
_TOLERANCE = 1e-2  # of the largest change


def _candidates(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
    """A group, and two of its parameters, the smallest; where each has one alone, the first group and any two."""
    all_usable = []
    for group in optimizer.param_groups:
        usable = [
            parameter
            for parameter in group["params"]
            if parameter.is_floating_point() and 0 < parameter.numel() <= _LARGEST
        ]
        if len(usable) > 1:
            return group, sorted(usable, key=torch.Tensor.numel)[:2]
        all_usable += usable
    if len(all_usable) < 2:
        return None
    return optimizer.param_groups[0], sorted(all_usable, key=torch.Tensor.numel)[:2]


def _copy(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameters: Sequence[torch.Tensor]
) -> torch.optim.Optimizer:
    """The optimizer without state, with these parameters in the group."""
    options = {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}
    if isinstance(options.get("lr"), float):
        options["lr"] = options["lr"] or 0.1  # a scheduler that warms up begins with 0
    attributes = {key: value for key, value in vars(optimizer).items() if key not in ("param_groups", "state", "step")}
    # The user's hooks have nothing to do with a trial.
    attributes.update((key, OrderedDict()) for key in attributes if key.endswith("hooks"))
    # Attributes that hold the real parameters must not lead to them: what uses these cannot be tried.
    memo = {id(parameter): object() for every in optimizer.param_groups for parameter in every["params"]}
    made: torch.optim.Optimizer = type(optimizer).__new__(type(optimizer))
    vars(made).update(copy.deepcopy(attributes, memo))
    vars(made).update(param_groups=[{**options, "params": list(parameters)}], state=defaultdict(dict))
    return made


def _try(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], shapes: Sequence[torch.Size], which: Sequence[int]
) -> list[torch.Tensor]:
    """By how much those change that `which` names, if they are alone."""
    tried = []
    for index in which:
        value = torch.full(shapes[index], 0.5, device="cpu").requires_grad_()
        value.grad = torch.linspace(0.5, 1.0, value.numel(), device="cpu").view(shapes[index]) * _SIZES[index]
        tried.append(value)
    made = _copy(optimizer, group, tried)
    step = inspect.unwrap(type(optimizer).step)  # without hooks
    with torch.no_grad():
        for _ in range(_STEPS):
            step(made)
    return [value.detach() - 0.5 for value in tried]


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    largest = max(one.abs().max().item(), other.abs().max().item())
    return bool((one - other).abs().max().item() > _TOLERANCE * largest)


def check_independent(optimizer: torch.optim.Optimizer, refusal: str) -> None:
    """Raises ValueError, which ends with `refusal`, if a trial shows that updates of parameters depend on each other.

    What cannot be tried (an optimizer that wants more than gradients, or draws random numbers) is let through.
    """
    found = _candidates(optimizer)
    if found is None:
        return
    group, parameters = found
    shapes = [parameter.shape for parameter in parameters]
    try:
        with torch.random.fork_rng(devices=[]):
            together = _try(optimizer, group, shapes, (0, 1))
            # Not torch.manual_seed(), which sets the generators of the GPUs, too.
            torch.default_generator.manual_seed(torch.initial_seed() + 1)
            again = _try(optimizer, group, shapes, (0, 1))
            apart = [_try(optimizer, group, shapes, (index,))[0] for index in (0, 1)]
    except Exception:
        return
    if any(_differ(one, other) for one, other in zip(together, again)):
        return
    if any(_differ(one, other) for one, other in zip(together, apart)):
        raise ValueError(
            f"{type(optimizer).__name__} updates a parameter by more than its own gradient and state (a norm of all "
            f"gradients, say): it cannot update one after the other. {refusal}"
        )
