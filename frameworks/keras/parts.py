"""The optimizers inside of an optimizer of Keras: of LossScaleOptimizer and of MultiOptimizer."""

from __future__ import annotations

from typing import Any

from byteps.keras.flavor import keras_of


def _is_multi_optimizer(optimizer: Any) -> bool:
    keras = keras_of(optimizer)
    kind = None if keras is None else getattr(keras.optimizers, "MultiOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)


def is_multiple(optimizer: Any) -> bool:
    """Whether it is a MultiOptimizer of Keras 3, with an optimizer for each variable, or loss scaling around one."""
    return any(_is_multi_optimizer(each) for each in (optimizer, getattr(optimizer, "inner_optimizer", None)))


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizer and those inside of it. Some of a MultiOptimizer may be there only when it is built."""
    parts = [optimizer]
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        parts.append(inner)
    if _is_multi_optimizer(parts[-1]):
        parts += parts[-1].optimizers
    return parts
