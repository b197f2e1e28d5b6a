"""The names by which the gradients of a DistributedOptimizer meet those of the other ranks.

Two models may call their parameters alike: the generator and the discriminator of a GAN, the members of an ensemble.
Their gradients may be on their way at once, so each needs a name of its own: the first optimizer of a session has
`Gradient.0.weight`, the second one with another parameter of that name `Gradient.0.weight#2`. An optimizer of the same
parameters as an earlier one has the earlier one's number.

What decides is the order in which a program makes its optimizers, and never which of them are still alive: a garbage
collector ends their lives at other times on each rank.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from byteps.process_set import ProcessSet, global_process_set
from byteps.session import Session, current_session

import torch

# Numbers are given in a circle: the job remembers every name, so their number must not grow for ever where a program
# makes one model after the other.
_MAX_NUMBERS = 64


class _Numbers:
    """Which numbers the names of one session and process set have."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A parameter that has died is another one than each that comes.
        self._owners: dict[tuple[str, int], weakref.ref[torch.Tensor]] = {}
        self._given: dict[int, int] = {}  # when each number was given last
        self._count = 0

    def give(self, named: Sequence[tuple[str, torch.Tensor]]) -> int:
        """The number of an optimizer with these names: the lowest that none of them has for another parameter."""
        with self._lock:
            numbers = range(1, _MAX_NUMBERS + 1)
            number = next((each for each in numbers if self._is_free(each, named)), None)
            if number is None:
                number = min(numbers, key=self._given.__getitem__)
            self._count += 1
            self._given[number] = self._count
            for name, parameter in named:
                self._owners[name, number] = weakref.ref(parameter)
            return number

    def _is_free(self, number: int, named: Sequence[tuple[str, torch.Tensor]]) -> bool:
        owners = ((self._owners.get((name, number)), parameter) for name, parameter in named)
        return all(owner is None or owner() is parameter for owner, parameter in owners)


_lock = threading.Lock()
_NUMBERS: weakref.WeakKeyDictionary[Session, dict[str, _Numbers]] = weakref.WeakKeyDictionary()


def _numbers(process_set: ProcessSet) -> _Numbers:
    with _lock:
        return _NUMBERS.setdefault(current_session(), {}).setdefault(process_set.key(), _Numbers())


def _place(optimizer: torch.optim.Optimizer, missing: torch.Tensor) -> str:
    """Where the optimizer has a parameter."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter is missing:
                return f"parameter {index} of param_groups[{number}], of shape {tuple(parameter.shape)}"
    raise AssertionError("the optimizer has the parameter")


def _check_entries(named: Sequence[object]) -> None:
    """Raises ValueError."""
    for number, pair in enumerate(named):
        if not isinstance(pair, tuple) or len(pair) != 2:
            found = f"a tuple of {len(pair)}" if isinstance(pair, tuple) else f"a {type(pair).__name__}"
            raise ValueError(
                "named_parameters must be a sequence of (name, parameter), such as model.named_parameters(); entry "
                f"{number} is {found}"
            )
        if not isinstance(pair[0], str) or not isinstance(pair[1], torch.Tensor):
            raise ValueError(
                "named_parameters must have a string and a tensor in each entry, such as model.named_parameters(); "
                f"entry {number} has a {type(pair[0]).__name__} and a {type(pair[1]).__name__}"
            )


def _check(optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError."""
    _check_entries(named)
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
    if twice:
        raise ValueError(f"named_parameters has names twice: {', '.join(twice)}")
    known = {parameter for _, parameter in named}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    missing = [parameter for parameter in parameters if parameter not in known]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's {len(parameters)} parameters, the first of them "
            f"{_place(optimizer, missing[0])}; name all of them or none"
        )


class GradientNames:
    """The names of an optimizer's gradients.

    Attributes:
        unnamed: what the names of parameters without one begin with.
        gradients: the optimizer's parameters with the names of their gradients, most urgent first.
        given: the names that the user has given, or those of the gradients.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Raises ValueError."""
        named = None if named_parameters is None else list(named_parameters)
        if named is not None:
            _check(optimizer, named)  # before it has a number: a rank that is refused is in step with the others
        number = current_session().object_number("DistributedOptimizer", process_set.key())
        self.unnamed = f"Gradient.noname.{number}"
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if named is None:
            self.gradients = [(f"{self.unnamed}.{index}", parameter) for index, parameter in enumerate(parameters)]
            self.given = {parameter: name.removeprefix("Gradient.") for name, parameter in self.gradients}
            return
        ours = set(parameters)
        self.given = {}
        for name, parameter in named:
            if parameter in ours:
                self.given.setdefault(parameter, name)  # tied weights have several names; the first counts
        number = _numbers(process_set).give([(name, parameter) for parameter, name in self.given.items()])
        suffix = f"#{number}" if number > 1 else ""
        self.gradients = [(f"Gradient.{name}{suffix}", parameter) for parameter, name in self.given.items()]

    def of(self, others: Mapping[torch.Tensor, torch.Tensor]) -> GradientNames:
        """This, with the other tensor in place of each parameter: it is the other's gradient that is sent."""
        self.gradients = [(name, others[parameter]) for name, parameter in self.gradients]
        self.given = {others[parameter]: name for parameter, name in self.given.items()}
        return self
