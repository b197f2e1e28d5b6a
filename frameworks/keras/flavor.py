"""Which Keras it is: Keras 3, on one of its backends, or Keras 2, which is called tf_keras now."""

from __future__ import annotations

import importlib
from typing import Any


def installed_keras() -> Any:
    """The package keras, or tf_keras where there is no other. Raises ImportError."""
    for name in ("keras", "tf_keras"):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if error.name != name:  # it is there, and something else is not
                raise
    raise ImportError("byteps.keras needs Keras: install keras, with TensorFlow, JAX or PyTorch")


def is_keras_3(keras: Any) -> bool:
    """Whether the package is Keras 3 or newer."""
    return int(keras.__version__.split(".")[0]) >= 3


def keras_of(thing: Any) -> Any:
    """The package that the class of an optimizer or a model comes from: keras or tf_keras. None if neither."""
    for kind in type(thing).__mro__:
        package = kind.__module__.split(".")[0]
        if package in ("keras", "tf_keras"):
            return importlib.import_module(package)
    return None


def backend_of(keras: Any) -> str:
    """tensorflow, jax or torch. Raises NotImplementedError for another."""
    if not is_keras_3(keras):
        return "tensorflow"
    name = str(keras.backend.backend())
    if name not in ("tensorflow", "jax", "torch"):
        raise NotImplementedError(f"byteps.keras does not know Keras's backend {name}: use tensorflow, jax or torch")
    return name
