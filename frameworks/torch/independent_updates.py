"""Does an optimizer update each parameter by its own gradient and state alone?

It cannot be asked, so it is tried out: copies of it take steps with two of its parameters' shapes, together and one at
a time, also with gradients that are not finite. An optimizer that scales by the norm of all gradients, say, comes to
other values then. One that counts its steps, in its options or attributes, is seen to change these.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

from byteps.torch.optimizer_changes import attributes, changed, changed_attributes, options

import torch

_STEPS = 2
# Of the gradients of the first and of the second one: what counts for both of them shows in the first.
_SIZES = (1e-3, 1e3)
_LARGEST = 1 << 20  # elements of a parameter that is tried
_LONGEST = 256  # of the dimensions of what is tried in its place: some optimizers multiply matrices
_TOLERANCE = 1e-2  # of the largest change
_BOTH = (0, 1)


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


def _on_cpu(value: Any) -> Any:
    """A copy of a part of a parameter's state, for a parameter of float32 on the CPU."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return value.detach().to(device="cpu", dtype=dtype, copy=True)


class _Trial:
    """Copies of an optimizer with two tensors for parameters."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], parameters: Sequence[torch.Tensor], state: bool
    ) -> None:
        """The tensors have the shapes of these parameters of the group, but no long dimensions; with `state` they have
        also those, and the state."""
        self._optimizer, self._group, self._parameters = optimizer, group, parameters
        self._state = state
        self._step = inspect.unwrap(type(optimizer).step)  # without hooks

    def _tensors(self, which: Sequence[int]) -> list[torch.Tensor]:
        """Those that `which` names, with gradients."""
        tensors = []
        for index in which:
            shape = self._parameters[index].shape
            if not self._state:
                shape = torch.Size(min(length, _LONGEST) for length in shape)
            value = torch.full(shape, 0.5, device="cpu").requires_grad_()
            value.grad = torch.linspace(0.5, 1.0, value.numel(), device="cpu").view(shape) * _SIZES[index]
            tensors.append(value)
        return tensors

    def _copy(self, which: Sequence[int], tensors: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimizer with these tensors in the group."""
        optimizer, group = self._optimizer, self._group
        own_options = {
            key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")
        }
        if isinstance(own_options.get("lr"), float):
            own_options["lr"] = own_options["lr"] or 0.1  # a scheduler that warms up begins with 0
        kept = {key: value for key, value in vars(optimizer).items() if key not in ("param_groups", "state", "step")}
        # The user's hooks have nothing to do with a trial.
        kept.update((key, OrderedDict()) for key in kept if key.endswith("hooks"))
        # Attributes that hold the real parameters must not lead to them: what uses these cannot be tried.
        memo = {id(parameter): object() for every in optimizer.param_groups for parameter in every["params"]}
        made: torch.optim.Optimizer = type(optimizer).__new__(type(optimizer))
        vars(made).update(copy.deepcopy(kept, memo))
        state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        if self._state:
            for index, tensor in zip(which, tensors):
                own = optimizer.state.get(self._parameters[index], {})
                state[tensor] = {key: _on_cpu(value) for key, value in own.items()}
        vars(made).update(param_groups=[{**own_options, "params": list(tensors)}], state=state)
        return made

    def moves(
        self, which: Sequence[int], spoiled: tuple[int, float] | None = None, one_by_one: bool = False
    ) -> list[torch.Tensor]:
        """By how much those change that `which` names, if they are alone.

        Args:
            spoiled: one of them, and what is in its gradient.
            one_by_one: each step is one of the first tensor, then one of the second.
        """
        tensors = self._tensors(which)
        if spoiled is not None:
            gradient = tensors[which.index(spoiled[0])].grad
            assert gradient is not None
            gradient.view(-1)[0] = spoiled[1]
        made = self._copy(which, tensors)
        (group,) = made.param_groups
        turns = [[tensor] for tensor in tensors] if one_by_one else [tensors]
        with torch.no_grad():
            for _ in range(_STEPS):
                for turn in turns:
                    made.param_groups = [{**group, "params": turn}]
                    self._step(made)
        return [tensor.detach() - 0.5 for tensor in tensors]

    def changes(self) -> tuple[list[str], list[str]]:
        """The options that steps change, and the attributes. Also steps count that fail half-way.

        What the first step alone does to attributes is left out: it may look once whether something is there, and keep
        the answer, as torch.optim's do. If that counts for all parameters, moves() shows it.
        """
        tensors = self._tensors(_BOTH)
        made = self._copy(_BOTH, tensors)
        before = options(made.param_groups)
        looks = []
        with torch.no_grad():
            for _ in range(2):
                with contextlib.suppress(Exception):
                    self._step(made)
                looks.append(attributes(made, tensors))
                for tensor in tensors:
                    assert tensor.grad is not None
                    tensor.grad.mul_(0.5)  # so that what is made of gradients changes
        after = options(made.param_groups)
        of_options = {name for old, new in zip(before, after) for name in changed(old, new)}
        return sorted(of_options), changed_attributes(*looks)


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return True
    one, other = one[finite], other[finite]
    if one.numel() == 0:
        return False
    largest = max(one.abs().max().item(), other.abs().max().item())
    return bool((one - other).abs().max().item() > _TOLERANCE * largest)


def _any_differs(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return any(_differ(one, other) for one, other in zip(ones, others))


def _dependence(trial: _Trial) -> str | None:
    """What the update of a parameter depends on besides its own gradient and state, as far as the trial shows. Raises
    what step() raises."""
    together = trial.moves(_BOTH)
    # Not torch.manual_seed(), which sets the generators of the GPUs, too.
    torch.default_generator.manual_seed(torch.initial_seed() + 1)
    if _any_differs(together, trial.moves(_BOTH)):
        return None  # it draws random numbers
    apart = [trial.moves((index,))[0] for index in _BOTH]
    if _any_differs(together, apart):
        return "more than its own gradient and state (a norm of all gradients, say)"
    if _any_differs(together, trial.moves(_BOTH, one_by_one=True)):
        return "more than its own gradient and state (the number of calls of step(), say)"
    for index in _BOTH:
        for value in (math.nan, math.inf):
            try:
                moves = trial.moves(_BOTH, spoiled=(index, value))
            except Exception:  # of its own mathematics, perhaps
                continue
            if _differ(moves[1 - index], apart[1 - index]):
                return f"more than its own gradient and state (whether other gradients are finite: one has {value})"
    return None


def check_kept(optimizer: torch.optim.Optimizer, where: str, names: Sequence[str], refusal: str) -> None:
    """Raises ValueError, which ends with `refusal`, if there are names: of what a step has changed there."""
    if names:
        raise ValueError(
            f"{type(optimizer).__name__}.step() changes {where} ({', '.join(names)}), which it has for all parameters "
            f"at once: it cannot update one after the other. {refusal}"
        )


def check_independent(optimizer: torch.optim.Optimizer, refusal: str) -> None:
    """Raises ValueError, which ends with `refusal`, if a trial shows that updates of parameters depend on each other,
    or that step() changes options or attributes of the optimizer.

    What cannot be tried (an optimizer that wants more than gradients, or draws random numbers) is let through.
    """
    found = _candidates(optimizer)
    if found is None:
        return
    group, parameters = found
    number = next(index for index, other in enumerate(optimizer.param_groups) if other is group)
    # Some make their state when they are made (torch.optim.Adagrad did), and take no step without.
    for state in (False, True) if all(optimizer.state.get(parameter) for parameter in parameters) else (False,):
        trial = _Trial(optimizer, group, parameters, state)
        with torch.random.fork_rng(devices=[]):
            try:
                of_options, of_attributes = trial.changes()
            except Exception:  # it has what cannot be copied or compared
                of_options, of_attributes = [], []
        check_kept(optimizer, f"param_groups[{number}]", of_options, refusal)
        check_kept(optimizer, "its attributes", of_attributes, refusal)
        with torch.random.fork_rng(devices=[]):
            try:
                dependence = _dependence(trial)
            except Exception:
                continue
        if dependence is not None:
            raise ValueError(
                f"{type(optimizer).__name__} updates a parameter by {dependence}: it cannot update one after the "
                f"other. {refusal}"
            )
        return
