"""Variables of Keras as NumPy arrays, alike on all backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps.collectives import broadcast_arrays
from byteps.names import unnumbered


def to_array(variable: Any) -> np.ndarray:
    """The value of a variable of any backend."""
    value = variable.numpy() if hasattr(variable, "numpy") else variable
    return np.asarray(value)


def variable_name(variable: Any) -> str:
    """What a variable is called, the same on all ranks."""
    path = getattr(variable, "path", None)  # of Keras 3
    return unnumbered(path if isinstance(path, str) else str(variable.name))


def broadcast_to_variables(variables: Sequence[Any], root_rank: int, prefix: str) -> None:
    """Overwrites every rank's variables with the root's. Raises as broadcast_arrays."""
    # The names of variables of tf_keras's optimizers depend on who has built them.
    names = [f"{prefix}.{index}" for index in range(len(variables))]
    values = broadcast_arrays([to_array(variable) for variable in variables], names, root_rank)
    for variable, value in zip(variables, values):
        variable.assign(value)
