"""byteps.keras for tf.keras, which is Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

from typing import Any

from byteps import shared as _shared
from byteps.keras import (
    Compression,
    DistributedOptimizer,
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    push_pull,
    reducescatter,
)
from byteps.keras import load_model as _load_model
from byteps.keras.sync_batch_norm import layer_of as _layer_of
from byteps.shared import *  # noqa: F403 - init, rank, size, the errors, the reductions ...
from byteps.tensorflow.keras import callbacks, elastic

import tensorflow as _tf


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """byteps.keras.load_model for tf.keras."""
    return _load_model(filepath, custom_optimizers, custom_objects, compression, keras=_tf.keras, **options)


SyncBatchNormalization = _layer_of(_tf.keras)

__all__ = [
    *_shared.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "push_pull",
    "reducescatter",
]
