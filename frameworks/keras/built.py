"""Models and optimizers that have all their variables, before the first step."""

from __future__ import annotations

from typing import Any


def refuse_unbuilt(model: Any) -> None:
    """Raises ValueError for a model that has no weights yet: there would be nothing to keep or to send."""
    if not model.built or not model.weights:
        raise ValueError(
            "the model must be built first, since its state is that of its variables: give it an Input, call "
            "model.build(input_shape), or call it with a batch"
        )


def build_optimizer(optimizer: Any, trainable_variables: Any) -> bool:
    """Makes the variables of an optimizer of Keras 3, of tf_keras (which has `_built`, and no `built`) or of its legacy
    ones, unless they are there. Whether they are there now."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(trainable_variables)
        return True
    if hasattr(optimizer, "_create_all_weights"):  # the legacy ones of tf_keras
        optimizer._create_all_weights(trainable_variables)
        return True
    return False
