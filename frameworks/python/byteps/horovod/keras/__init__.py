"""Stands in for horovod.keras: the same names and arguments, carried by BytePS.

import byteps.horovod.keras as hvd
"""

from __future__ import annotations

from typing import Any

from byteps.horovod.common.basics import *  # noqa: F403
from byteps.horovod.common.basics import __all__ as _BASICS
from byteps.horovod.keras import callbacks, elastic
from byteps.horovod.keras.values import allgather, allreduce, broadcast, reducescatter
from byteps.keras import (
    Compression,
    DistributedOptimizer,
    PartialDistributedOptimizer,
    broadcast_global_variables,
    broadcast_object,
)
from byteps.keras import load_model as _load_model
from byteps.keras.flavor import installed_keras


def load_model_of(keras: Any, legacy_opts: bool, *arguments: Any) -> Any:
    """load_model() for this package, keras or tf_keras. Raises NotImplementedError for legacy_opts=True."""
    if legacy_opts:
        raise NotImplementedError(
            "legacy_opts=True: the optimizer is of the class that the file names. Save the model with one of "
            "tf_keras.optimizers.legacy to get such a one"
        )
    return _load_model(*arguments, keras=keras)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """byteps.keras.load_model."""
    return load_model_of(installed_keras(), legacy_opts, filepath, custom_optimizers, custom_objects, compression)


__all__ = [
    *_BASICS,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
