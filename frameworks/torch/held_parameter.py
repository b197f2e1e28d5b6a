"""Parameters whose new values are still on their way: code that uses one waits for it.

    hold(parameter, owner)       # from here on, every function of PyTorch that gets it calls owner.settle([parameter])
    release(parameter)           # what settle() does, before it writes the value

A held parameter is the same object, of a subclass of its class: PyTorch then asks the subclass before it does anything
with it, wherever the parameter came from: an attribute of a module, a list, state_dict(), copy.deepcopy(). What does
not read the value (its shape, its dtype, its identity) goes through without a wait.

It does not see what other tensors do with the same memory (`parameter.detach()` from before), and not what compiled
code does (TorchScript, extensions) that got the parameter elsewhere than from a call in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

_OWNER = "_byteps_owner"


class Owner(Protocol):
    """The optimizer that knows the new values."""

    def settle(self, parameters: Sequence[torch.Tensor]) -> None:
        """Waits for the new values, releases the parameters and writes them. Those that are not held any more are left
        alone."""


# What PyTorch asks about a tensor without reading its values.
_HARMLESS = frozenset(
    [
        *(
            getattr(torch.Tensor, name).__get__
            for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "is_cpu")
        ),
        *(torch.Tensor.is_cuda.__get__, torch.Tensor.is_meta.__get__, torch.Tensor.is_sparse.__get__),
        *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.element_size),
        *(
            torch.Tensor.__len__,
            torch.Tensor.stride,
            torch.Tensor.is_contiguous,
            torch.Tensor.is_floating_point,
            torch.Tensor.is_complex,
        ),
    ]
)


def _held_in(values: Iterable[Any], found: dict[Any, list[torch.Tensor]]) -> None:
    """Finds held parameters, by owner, in arguments and in the lists among them."""
    for value in values:
        if type(value) in _ORIGINAL:
            found.setdefault(getattr(value, _OWNER, None), []).append(value)
        elif isinstance(value, (list, tuple)):
            _held_in(value, found)
        elif isinstance(value, dict):
            _held_in(value.values(), found)


def _torch_function(
    cls: type, function: Any, types: Any, arguments: Any = (), keywords: dict[str, Any] | None = None
) -> Any:
    """PyTorch calls this instead of `function`."""
    keywords = keywords or {}
    if function in _HARMLESS:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **keywords)
    found: dict[Any, list[torch.Tensor]] = {}
    _held_in((arguments, keywords), found)
    for owner, parameters in found.items():
        if owner is not None:
            owner.settle(parameters)
        else:
            # A copy that was made of the class without asking for the value.
            for parameter in parameters:
                release(parameter)
    return function(*arguments, **keywords)


def _settled(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter, of its own class."""
    _torch_function(type(parameter), lambda _: None, (), (parameter,))
    return parameter


class _HeldParameter(torch.nn.Parameter):
    """A torch.nn.Parameter that is held."""

    __torch_function__ = classmethod(_torch_function)

    # These do not ask as the functions of PyTorch do.
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _settled(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _settled(self).__reduce_ex__(protocol)


class _HeldTensor(torch.Tensor):
    """A torch.Tensor that is held."""

    __torch_function__ = classmethod(_torch_function)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _settled(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _settled(self).__reduce_ex__(protocol)


_HELD: dict[type, type] = {torch.nn.Parameter: _HeldParameter, torch.Tensor: _HeldTensor}
_ORIGINAL: dict[type, type] = {held: original for original, held in _HELD.items()}


def settled(value: Any) -> Any:
    """The value; a held parameter is waited for."""
    return _settled(value) if type(value) in _ORIGINAL else value


def can_hold(parameter: torch.Tensor) -> bool:
    """Whether it is of a class that can be held. A subclass of the trainer's own cannot."""
    return type(parameter) in _HELD


def hold(parameter: torch.Tensor, owner: Owner) -> None:
    """Code that uses the parameter calls the owner first, which lives as long as that."""
    setattr(parameter, _OWNER, owner)
    parameter.__class__ = _HELD[type(parameter)]


def release(parameter: torch.Tensor) -> None:
    """An ordinary parameter again."""
    parameter.__class__ = _ORIGINAL.get(type(parameter), type(parameter))
    parameter.__dict__.pop(_OWNER, None)
