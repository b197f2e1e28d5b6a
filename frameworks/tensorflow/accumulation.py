"""backward_passes_per_step of optimizers that do not add up gradients themselves: of TensorFlow 1 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from byteps.errors import UnimplementedError

import tensorflow as tf


class Accumulation:
    """The sums of one optimizer's gradients. In a graph of TensorFlow 1 its variables are local ones
    (tf.compat.v1.local_variables_initializer), as Horovod's.

    Args:
        passes: how many gradients of a variable make a step; at least 2.
        average: divides their sum by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        self._count: Any = None
        self._sums: list[Any] = []

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Adds the gradients of a pass up.

        Args:
            gradients: dense tensors, or None where a variable has none; the same variables in each pass.
            variables: theirs.

        Returns:
            A boolean tensor: whether that was the last pass of a step.

        Raises:
            UnimplementedError: within a strategy of tf.distribute.
            ValueError: tf.IndexedSlices, or other variables than in the pass before.
        """
        if tf.distribute.has_strategy():
            raise UnimplementedError(
                "backward_passes_per_step with optimizers of TensorFlow 1 and tf_keras does not work within a strategy "
                "of tf.distribute; add the gradients up in the training step"
            )
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise ValueError(
                "backward_passes_per_step adds up dense gradients: tf.IndexedSlices need sparse_as_dense=True"
            )
        if self._count is None:
            with tf.init_scope():
                self._count = _local("count", [], tf.int64)
                self._sums = [
                    None if gradient is None else _local("sum", variable.shape, gradient.dtype)
                    for gradient, variable in zip(gradients, variables)
                ]
        has_sum = [own is not None for own in self._sums]
        if has_sum != [gradient is not None for gradient in gradients] or any(
            own is not None and own.shape != variable.shape for own, variable in zip(self._sums, variables)
        ):
            raise ValueError("backward_passes_per_step needs gradients of the same variables in each pass")
        pairs = zip(self._sums, gradients)
        added = [own.assign_add(gradient, read_value=False) for own, gradient in pairs if own is not None]
        with behind(added):
            return self._count.assign_add(1) >= self._passes

    def take(self) -> list[Any]:
        """The sums, or means; None where there was no gradient. The next pass begins a new step."""
        taken = [None if own is None else tf.identity(own.read_value()) for own in self._sums]
        with behind([value for value in taken if value is not None]):
            zeroed = [own.assign(tf.zeros_like(own), read_value=False) for own in self._sums if own is not None]
            zeroed.append(self._count.assign(0, read_value=False))
        with behind(zeroed):
            divisor = self._passes if self._average else 1
            return [None if value is None else value / tf.cast(divisor, value.dtype) for value in taken]

    def step(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Callable[[Any], Any], skip: Any) -> Any:
        """Adds up, and calls apply(sums) behind the last pass of a step, skip() behind the others. In a graph: the op
        that does it."""

        def applied() -> Any:
            with behind([apply(self.take())]):
                return tf.constant(True)

        def skipped() -> Any:
            with behind([skip()]):
                return tf.constant(False)

        done = tf.cond(self.add(gradients, variables), applied, skipped)
        return None if tf.executing_eagerly() else tf.group(done)


def dense(gradient: Any, sparse_as_dense: bool) -> Any:
    """The gradient, whose rows are made a whole tensor if that was asked for."""
    if sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def _local(name: str, shape: Any, dtype: Any) -> Any:
    collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    return tf.compat.v1.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        name=f"byteps_accumulation_{name}",
        collections=collections,
        use_resource=True,
    )


def behind(results: Sequence[Any]) -> Any:
    """A context: what comes next in a graph runs behind these operations; in eager execution they have run."""
    return tf.control_dependencies([] if tf.executing_eagerly() else [each for each in results if each is not None])
