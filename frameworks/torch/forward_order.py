"""In which order the forward pass needs the parameters: what it needs first should come home first.

    order = ForwardOrder(parameters)      # from here on, forward passes are watched
    ...                                   # the first iteration
    urgency = order.close()               # the parameters, the one used first in front

A module that calls no other uses its own parameters when it is called: their place is certain. Others are not: a module
uses its own before, between or behind the calls of its children; some reach into children that they do not call (an
attention layer takes the weight of its output projection); and what is used outside of modules no call shows. Those are
put between the certain ones by the backward pass, which gives the gradient of what was used first last. What has no
gradient and is of no module that was called was not used, and goes last. Without a backward pass the innermost call
around counts.

Every rank watches its own passes. Ranks may see different orders: priorities say what goes first, not what meets what.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any, NamedTuple

from byteps.torch.compiling import is_compiling

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

# The number of a call; 0: in front of what that uses, 1: with it, 2: behind it; among those of one such place.
_Place = tuple[int, int, int]


class _Use(NamedTuple):
    """Where a call showed a parameter."""

    call: int
    module: torch.nn.Module
    own: bool  # of that module; False: of one inside it


class ForwardOrder:
    """Watches the forward passes of this process until it is closed."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._declared = list(parameters)
        self._wanted = set(self._declared)
        self._called: set[torch.nn.Module] = set()
        self._uses: dict[torch.Tensor, _Use] = {}
        self._gradients: dict[torch.Tensor, int] = {}
        self._hook: Any = register_module_forward_pre_hook(self._on_forward)

    def add(self, parameter: torch.Tensor) -> None:
        """One more to watch."""
        self._declared.append(parameter)
        self._wanted.add(parameter)

    def _on_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # A compiler that traces this has no use for it.
        if is_compiling() or module in self._called:
            return
        call = len(self._called)
        self._called.add(module)
        own = {parameter for parameter in module._parameters.values() if parameter is not None}
        for parameter in module.parameters():
            if parameter not in self._wanted:
                continue
            seen = self._uses.get(parameter)
            if seen is None or not seen.own:
                self._uses[parameter] = _Use(call, module, parameter in own)

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Its gradient has come."""
        self._gradients.setdefault(parameter, len(self._gradients))

    @property
    def seen(self) -> bool:
        """Was there anything to learn from?"""
        return bool(self._uses or self._gradients)

    def close(self) -> list[torch.Tensor]:
        """Stops watching. All the parameters, the most urgent first."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        certain = self._certain()
        # Of each call, the earliest gradient of all calls up to it: it only falls.
        calls: list[int] = []
        earliest: list[int] = []
        for parameter, (call, _, _) in certain.items():
            if parameter in self._gradients:
                calls.append(call)
                earliest.append(min([self._gradients[parameter], *earliest[-1:]]))
        places = {}
        for parameter in self._declared:
            place = certain.get(parameter)
            places[parameter] = place if place is not None else self._uncertain(parameter, calls, earliest)
        self._called.clear()
        return sorted(self._declared, key=lambda parameter: places[parameter])

    def _certain(self) -> dict[torch.Tensor, _Place]:
        """The parameters of modules that called no other, in the order of use."""
        called = set(self._called)  # another thread's forward pass may call modules meanwhile
        leaves = {
            module for module in called if not any(other in called for other in module.modules() if other is not module)
        }
        uses = ((parameter, self._uses.get(parameter)) for parameter in self._declared)
        places = {parameter: (use.call, 1, 0) for parameter, use in uses if use and use.own and use.module in leaves}
        return dict(sorted(places.items(), key=lambda item: item[1]))

    def _uncertain(self, parameter: torch.Tensor, calls: list[int], earliest: list[int]) -> _Place:
        """In front of the first call whose own parameters gave their gradients earlier: it came later."""
        last = len(self._called)
        gradient = self._gradients.get(parameter)
        if gradient is not None:
            later = bisect.bisect_left(earliest, -gradient, key=lambda number: -number)
            return (calls[later] if later < len(calls) else last, 0, -gradient)
        use = self._uses.get(parameter)
        if use is not None and (use.own or not self._gradients):
            return (use.call, 0 if use.own else 2, 0)
        return (last, 1, 0)
