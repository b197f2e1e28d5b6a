"""Which Keras it is: Keras 3, on one of its backends, or Keras 2, which is called tf_keras now."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from byteps.versions import check_version

# The last ones with which the tests have passed; the first is that of the oldest TensorFlow.
_OLDEST = (2, 13)
_NEWEST = {"keras": (3, 15), "tf_keras": (2, 21)}


@cache
def _imported(name: str) -> Any:
    """The package of this name, if it is there and not too old. Raises ImportError."""
    package = importlib.import_module(name)
    check_version("byteps.keras", "Keras" if name == "keras" else name, package.__version__, _OLDEST, _NEWEST[name])
    return package


def installed_keras() -> Any:
    """The package keras, or tf_keras where there is no other. Raises ImportError."""
    for name in ("keras", "tf_keras"):
        try:
            return _imported(name)
        except ImportError as error:
            if error.name != name:  # it is there, and something else is not
                raise
    raise ImportError("byteps.keras needs Keras: install keras, with TensorFlow, JAX or PyTorch")


def is_keras_3(keras: Any) -> bool:
    """Whether the package is Keras 3 or newer. It may be tf.keras, which is a module of a package."""
    version = getattr(keras, "__version__", None)
    if version is None:  # tf.keras with TF_USE_LEGACY_KERAS=1
        version = importlib.import_module(keras.__name__.split(".")[0]).__version__
    return int(version.split(".")[0]) >= 3


def keras_of(thing: Any) -> Any:
    """The package that the class of an optimizer or a model comes from: keras or tf_keras. None if neither."""
    for kind in type(thing).__mro__:
        package = kind.__module__.split(".")[0]
        if package in ("keras", "tf_keras"):
            return _imported(package)
    return None


def backend_of(keras: Any) -> str:
    """tensorflow, jax or torch. Raises NotImplementedError for another."""
    if not is_keras_3(keras):
        return "tensorflow"
    name = str(keras.backend.backend())
    if name not in ("tensorflow", "jax", "torch"):
        raise NotImplementedError(f"byteps.keras does not know Keras's backend {name}: use tensorflow, jax or torch")
    return name
