"""Copies of models: their optimizer is a DistributedOptimizer, too.

Keras copies a model (copy.copy, copy.deepcopy, pickle, clone_model) by what a file of it would hold, which names the
plain optimizer. A copy that is trained would then train on its own data alone, without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any


class _CompileConfig(dict[str, Any]):
    """What Keras compiles a copy with, and how its optimizer is distributed. A file of it has what is in the dict."""

    optimizer: tuple[Any, Sequence[int]]


def _settings(model: Any) -> tuple[Any, Sequence[int]] | None:
    """The settings of the model's optimizer, and which of the model's weights are local; None: it is a plain one."""
    from byteps.keras.optimizer import is_distributed

    optimizer = getattr(model, "optimizer", None)
    if not is_distributed(optimizer):
        return None
    local = [index for index, weight in enumerate(model.weights) if id(weight) in optimizer._bps_local]
    return optimizer._bps_settings, local


def _distribute(model: Any, settings: Any, local: Sequence[int]) -> None:
    from byteps.keras.optimizer import distribute, is_distributed

    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:  # a compile() of the program's own, which Keras does not call
        return
    if not is_distributed(optimizer):
        distribute(optimizer, settings)
    weights = model.weights
    for index in local:
        optimizer.register_local_var(weights[index])


def model_again(function: Callable[..., Any], arguments: Any, settings: Any, local: Sequence[int]) -> Any:
    """Of copy and pickle: the model that the function makes, with a DistributedOptimizer."""
    model = function(*arguments)
    _distribute(model, settings, local)
    return model


def _reduce(own: Callable[[Any], Any], model: Any) -> Any:
    reduced, settings = own(model), _settings(model)
    # With a state the copy gets the members, whose copy the optimizer is then.
    return reduced if settings is None or len(reduced) > 2 else (model_again, (*reduced, *settings))


def _deepcopy(own: Callable[[Any, Any], Any], model: Any, memo: Any) -> Any:
    copied, settings = own(model, memo), _settings(model)
    if settings is not None:
        _distribute(copied, *settings)
    return copied


def _get_compile_config(own: Callable[[Any], Any], model: Any) -> Any:
    config, settings = own(model), _settings(model)
    if settings is None or not isinstance(config, dict):
        return config
    config = _CompileConfig(config)
    config.optimizer = settings
    return config


def _compile_from_config(own: Callable[[Any, Any], Any], model: Any, config: Any) -> None:
    own(model, config)
    if isinstance(config, _CompileConfig):
        _distribute(model, *config.optimizer)


_METHODS: dict[str, Callable[..., Any]] = {
    "__reduce__": _reduce,
    "__deepcopy__": _deepcopy,
    "get_compile_config": _get_compile_config,
    "compile_from_config": _compile_from_config,
}


@functools.cache
def keep_in_copies(keras: Any) -> None:
    """From now on a copy of a model of this package whose optimizer is a DistributedOptimizer has one of the same
    settings. What files hold is the same as before."""
    for name, method in _METHODS.items():
        own = getattr(keras.Model, name, None)
        if own is None or own is object.__reduce__:
            continue
        setattr(keras.Model, name, _method(own, method))


def _method(own: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *arguments: Any) -> Any:
        return around(own, self, *arguments)

    return method
