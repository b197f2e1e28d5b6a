"""Loading models whose optimizer is to be a DistributedOptimizer again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.keras.compression import Compression
from byteps.keras.flavor import installed_keras
from byteps.keras.optimizer import DistributedOptimizer, is_distributed


def wrap_optimizer(model: Any, compression: Any, **options: Any) -> Any:
    """The model, its optimizer a DistributedOptimizer, with its state. A model that is not compiled is left alone."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression, **options)
    return model


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    keras: Any = None,
    **options: Any,
) -> Any:
    """Loads a model that was saved with its optimizer, and makes that a DistributedOptimizer.

    Args:
        filepath: as of keras.models.load_model.
        custom_optimizers: classes of optimizers that are not Keras's own.
        custom_objects: as of keras.models.load_model.
        compression: of DistributedOptimizer.
        keras: the package to use: keras or tf_keras; None: the one that is installed.
        options: further arguments of DistributedOptimizer.

    Raises:
        As keras.models.load_model and DistributedOptimizer.
    """
    package = installed_keras() if keras is None else keras
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    return wrap_optimizer(package.models.load_model(filepath, custom_objects=objects), compression, **options)
