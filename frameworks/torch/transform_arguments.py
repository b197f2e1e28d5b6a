"""Held parameters that are given to transforms of torch.func as arguments.

vmap, grad and their kin wrap what they get before any function of PyTorch asks for its value. What is wrapped has not
the parameter's class, so a held parameter (held_parameter.py) would not be waited for. There is no public place
between: the functions that wrap are private, and are replaced where this release of PyTorch has them.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from byteps.torch.held_parameter import settled

# Modules, and the functions in them whose first argument is wrapped: for vmap, for grad, vjp and jacrev, for
# functionalize. (jvp, jacfwd and linearize ask for the value.)
_PLACES = (
    ("torch._functorch.vmap", "_add_batch_dim"),
    ("torch._functorch.eager_transforms", "_wrap_for_grad"),
    ("torch._functorch.eager_transforms", "_wrap_functional_tensor"),
)

_lock = threading.Lock()
_watched = False


def _settling(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of a tensor that has its new value."""

    @functools.wraps(function)
    def wrap(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        return function(settled(tensor), *arguments, **keywords)

    return wrap


def watch_transforms() -> None:
    """From here on, transforms wait for held parameters among their arguments. Again it does nothing."""
    global _watched
    with _lock:
        if _watched:
            return
        _watched = True
        for path, name in _PLACES:
            module = importlib.import_module(path)
            function = getattr(module, name, None)
            if callable(function):
                setattr(module, name, _settling(function))
