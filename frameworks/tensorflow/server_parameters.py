"""The parameters that the servers keep in asynchronous training (docs/async.md), as TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from byteps import basics
from byteps.asynchronous import Beginning
from byteps.reduce_op import Sum
from byteps.session import current_session
from byteps.tensorflow.library import OPS, refuse_xla

import tensorflow as tf


@tf.function(autograph=False)
def _add_at_once(changes: list[tf.Tensor], names: tuple[str, ...]) -> list[tf.Tensor]:
    return _add(changes, names)


def _add(changes: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
    """What the servers have of each name once the change is added. The first are the most urgent."""
    return [
        OPS.byteps_push_pull(change, tensor_name=name, op=int(Sum), priority=-index, asynchronous=True)
        for index, (change, name) in enumerate(zip(changes, names))
    ]


class ServerParameters:
    """The parameters of one optimizer; eager and in functions."""

    def __init__(self) -> None:
        self._beginning = Beginning()

    def step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        """Takes `own_step`, which changes the variables, and makes them those of the servers, with that change.

        The servers begin with the variables that rank 0 has at its first step, for which all ranks wait. In a function
        that is when it is traced.

        Args:
            variables: of TensorFlow or Keras.
            names: one for each, the same on all ranks.
            own_step: the optimizer's.

        Raises:
            tf.errors.OpError: see byteps.tensorflow.ops.
            ValueError: before init(); or a variable has no value yet when a function is traced.
        """
        refuse_xla()
        if current_session().native.info()["size"] == 1:
            return own_step()
        self._begin(variables, names)
        tensors = [self._beginning.prefix + name for name in names]
        before = [tf.identity(variable) for variable in variables]
        result = own_step()
        changes = [tf.convert_to_tensor(variable) - start for variable, start in zip(variables, before)]
        added = _add_at_once(changes, tuple(tensors)) if tf.executing_eagerly() else _add(changes, tensors)
        for variable, value in zip(variables, added):
            variable.assign(value)
        return result

    def _begin(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        def values(indices: list[int]) -> list[tf.Tensor]:
            if not tf.executing_eagerly():
                raise ValueError(
                    "asynchronous training (BYTEPS_ENABLE_ASYNC=1) is not possible in a graph of TensorFlow 1; use "
                    "tf.function"
                )
            try:
                own = [tf.convert_to_tensor(variables[index]) for index in indices]
            except tf.errors.FailedPreconditionError as error:
                raise ValueError(
                    "the optimizer's variables have no values yet, and asynchronous training begins with them: build "
                    "the model before it is trained"
                ) from error
            return own if basics.rank() == 0 else [tf.zeros_like(value) for value in own]

        def add(indices: list[int], values: list[tf.Tensor]) -> None:
            _add_at_once(values, tuple(self._beginning.prefix + names[index] for index in indices))

        with tf.init_scope():
            self._beginning.begin(names, values, add, basics.barrier)
