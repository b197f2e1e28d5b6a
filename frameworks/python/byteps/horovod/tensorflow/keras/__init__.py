"""Stands in for horovod.tensorflow.keras: the same names and arguments, carried by BytePS. For tf.keras, which is
Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1.

import byteps.horovod.tensorflow.keras as hvd
"""

from __future__ import annotations

from typing import Any

import tensorflow as _tf

from byteps.horovod.keras import *  # noqa: F403
from byteps.horovod.keras import Compression, load_model_of
from byteps.horovod.keras import __all__ as __all__
from byteps.horovod.tensorflow.keras import callbacks, elastic  # noqa: F401


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """byteps.tensorflow.keras.load_model."""
    return load_model_of(_tf.keras, legacy_opts, filepath, custom_optimizers, custom_objects, compression)
