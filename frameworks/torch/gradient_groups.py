"""Groups of gradients that are sent together, when the last of a group is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


def split_into_groups(parameters: Sequence[torch.Tensor], groups: Any) -> list[list[torch.Tensor]]:
    """The groups that the argument `groups` of DistributedOptimizer asks for.

    Args:
        parameters: the optimizer's, in order.
        groups: None or 0: none; a number: so many of about equal length; a list of lists of parameters: these.

    Raises:
        ValueError: something else, or a parameter in two groups.
    """
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        count = min(groups, len(wanted))
        bounds = [number * len(wanted) // count for number in range(count + 1)] if count else [0]
        return [wanted[begin:end] for begin, end in zip(bounds, bounds[1:])]
    if not isinstance(groups, list) or not all(
        isinstance(group, (list, tuple)) and all(isinstance(member, torch.Tensor) for member in group)
        for group in groups
    ):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    members = [member for group in groups for member in group]
    if len(set(members)) != len(members):
        raise ValueError("A parameter can only appear once in groups.")
    ours = set(parameters)
    return [[member for member in group if member in ours] for group in groups]


class GradientGroups:
    """Which gradients are there, of those that wait for each other."""

    def __init__(self, groups: Iterable[Sequence[torch.Tensor]] = ()) -> None:
        self._group_of = {member: tuple(group) for group in groups for member in group}
        self._ready: set[torch.Tensor] = set()

    def __bool__(self) -> bool:
        """Are there any?"""
        return bool(self._group_of)

    def ready(self, parameter: torch.Tensor) -> Sequence[torch.Tensor]:
        """A gradient is there. The parameters whose gradients are to be sent now: its whole group, or none yet."""
        group = self._group_of.get(parameter)
        if group is None:
            return (parameter,)
        self._ready.add(parameter)
        return group if all(member in self._ready or not member.requires_grad for member in group) else ()

    def reset(self) -> None:
        """None is there any more."""
        self._ready.clear()
