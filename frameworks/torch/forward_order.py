"""In which order the forward pass needs the parameters: what it needs first should come home first.

    order = ForwardOrder(parameters)      # from here on, forward passes are watched
    ...                                   # the first iteration
    urgency = order.close()               # the parameters, the one used first in front

A module uses its own parameters when it is called. Some reach into their children instead (an attention layer takes the
weight of its output projection): those parameters are taken to be used where the innermost module around them was
called. What no module showed is ordered by the backward pass, which gives the gradient of what was used first last.

Every rank watches its own passes. Ranks may see different orders: priorities say what goes first, not what meets what.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook


class ForwardOrder:
    """Watches the forward passes of this process until it is closed."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._declared = list(parameters)
        self._wanted = set(self._declared)
        self._called: set[torch.nn.Module] = set()
        # (call, 0: the module's own or 1: of one of its children)
        self._uses: dict[torch.Tensor, tuple[int, int]] = {}
        self._gradients: dict[torch.Tensor, int] = {}
        self._hook: Any = register_module_forward_pre_hook(self._on_forward)

    def add(self, parameter: torch.Tensor) -> None:
        """One more to watch."""
        self._declared.append(parameter)
        self._wanted.add(parameter)

    def _on_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # A compiler that traces this has no use for it.
        if torch.compiler.is_compiling() or module in self._called:
            return
        call = len(self._called)
        self._called.add(module)
        own = {parameter for parameter in module._parameters.values() if parameter is not None}
        for parameter in module.parameters():
            if parameter not in self._wanted or self._uses.get(parameter, (0, 1))[1] == 0:
                continue  # not ours, or seen in use already
            self._uses[parameter] = (call, 0 if parameter in own else 1)

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
        self._called.clear()

        def key(item: tuple[int, torch.Tensor]) -> tuple[int, int, int, int]:
            declared, parameter = item
            if parameter in self._uses:
                return (0, *self._uses[parameter], declared)
            return (1, -self._gradients.get(parameter, -1), 0, declared)

        return [parameter for _, parameter in sorted(enumerate(self._declared), key=key)]
