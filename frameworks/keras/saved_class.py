"""What saved models call the class of a DistributedOptimizer: what they call that of the plain optimizer."""

from __future__ import annotations

import contextlib
from typing import Any

from byteps.keras.flavor import is_keras_3

# What tf_keras (Keras 2) calls the classes of its API, as members of them.
_API_NAMES = ("_keras_api_names", "_keras_api_names_v1")


def saved_as(made: Any, kind: type, keras: Any) -> None:
    """Lets Keras write `kind` where it writes `made`, a subclass of the same name: Keras knows classes as objects.

    Args:
        made: the new class; its __module__ is set.
        kind: of Keras or a program's own, registered with keras.saving.register_keras_serializable or not.
        keras: the package that it is for.
    """
    made.__module__ = kind.__module__
    if is_keras_3(keras):
        _as_of_keras_3(made, kind)
    for member in _API_NAMES:
        if member in vars(kind):
            setattr(made, member, vars(kind)[member])
    registered = keras.utils.get_registered_name(kind)
    if registered == kind.__name__:
        return
    objects = keras.utils.get_custom_objects()
    known = objects.get(registered, kind)
    package, _, name = registered.partition(">")
    keras.utils.register_keras_serializable(package, name)(made)
    # Where a file is read the name stands for the plain class, as before.
    objects[registered] = known


def _as_of_keras_3(made: Any, kind: type) -> None:
    """On PyTorch Keras writes a class of its backend, which other backends have not; here it is that of the API."""
    if not kind.__module__.startswith("keras.src."):
        return
    # Where a future Keras keeps its names elsewhere this is enough to load a file.
    made.__module__ = "keras.optimizers"
    with contextlib.suppress(ImportError, AttributeError):
        from keras.src import api_export

        names = api_export.REGISTERED_OBJS_TO_NAMES
        of_api = next((base for base in kind.__mro__ if base in names and base.__name__ == kind.__name__), None)
        if of_api is not None:
            names[made] = names[of_api]
