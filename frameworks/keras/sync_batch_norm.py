"""Batch normalization over the batches of all workers, for Keras 3 on all backends and for tf_keras."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from byteps.keras.flavor import backend_of, installed_keras, is_keras_3
from byteps.names import unnumbered
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Sum

# A layer's number among those of its name, in the order in which they are used first: the same on all ranks.
_NUMBERS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_USED: Counter[tuple[str, Any]] = Counter()


def _name_of(layer: Any, process_set: ProcessSet) -> str:
    """A name for the sums of this layer, which no other layer of this process gets."""
    name = unnumbered(layer.path)
    if layer not in _NUMBERS:
        key = (name, process_set.key())
        _NUMBERS[layer] = _USED[key]
        _USED[key] += 1
    return f"SyncBatchNormalization.{name}.{_NUMBERS[layer]}"


def _sum_on_tensorflow(values: Any, process_set: ProcessSet, layer: Any, what: str) -> Any:
    from byteps.tensorflow.ops import push_pull

    return push_pull(values, op=Sum, process_set=process_set)


def _sum_on_torch(values: Any, process_set: ProcessSet, layer: Any, what: str) -> Any:
    import torch
    from byteps.torch.allreduce import allreduce

    # Compiled training steps leave it to Python, as it is.
    return torch.compiler.disable(allreduce)(values, op=Sum, process_set=process_set)


def _sum_on_jax(values: Any, process_set: ProcessSet, layer: Any, what: str) -> Any:
    from byteps.jax.names import name_in_program
    from byteps.jax.ops import push_pull
    from byteps.jax.versions import is_traced

    # Numbers of the process would go on where one rank alone traces again, for a last batch of another size.
    name = name_in_program(f"{_name_of(layer, process_set)}.{what}") if is_traced(values) else None
    return push_pull(values, op=Sum, name=name, process_set=process_set)


_Sum = Callable[[Any, ProcessSet, Any, str], Any]
_SUMS: dict[str, _Sum] = {
    "tensorflow": _sum_on_tensorflow,
    "torch": _sum_on_torch,
    "jax": _sum_on_jax,
}


def _operations_of_tensorflow() -> SimpleNamespace:
    """What _Moments needs of keras.ops, for Keras 2."""
    import tensorflow as tf

    return SimpleNamespace(
        cast=tf.cast,
        concatenate=lambda parts: tf.concat(parts, 0),
        expand_dims=tf.expand_dims,
        maximum=tf.maximum,
        reshape=tf.reshape,
        shape=tf.shape,
        size=tf.size,
        square=tf.square,
        squeeze=tf.squeeze,
        sum=tf.reduce_sum,
        where=tf.where,
        zeros_like=tf.zeros_like,
    )


class _Moments:
    """What SyncBatchNormalization adds to Keras's BatchNormalization: mean and variance of the batches of all workers.

    Two sums travel, one after the other: the mean, then the squared distances from it. One sum of squares would lose
    the digits of the variance where the mean is large.
    """

    _bps_sum: _Sum
    _bps_ops: Any
    _bps_process_set: ProcessSet

    def _bps_alone(self) -> bool:
        return (check_process_set(self._bps_process_set).size() or 1) == 1

    def _bps_moments(self, inputs: Any, axes: Any, mask: Any) -> tuple[Any, Any]:
        """Mean and variance over `axes`, which stay as dimensions of length 1. Inputs that are masked do not count."""
        ops = self._bps_ops
        counted = None if mask is None else ops.cast(ops.expand_dims(mask, -1), "bool")

        def summed(values: Any, what: str) -> Any:
            return self._bps_sum(values, self._bps_process_set, self, what)

        def total(values: Any) -> Any:
            if counted is not None:
                values = ops.where(counted, values, ops.zeros_like(values))
            return ops.sum(values, axes, keepdims=True)

        own = total(inputs)
        shape = ops.shape(own)
        channels = ops.cast(ops.size(own), inputs.dtype)
        if mask is None:
            count = ops.cast(ops.size(inputs), inputs.dtype) / channels
        else:
            count = ops.sum(ops.cast(mask, inputs.dtype))
        sums = summed(ops.concatenate([ops.reshape(count, (1,)), ops.reshape(own, (-1,))]), "mean")
        # No rank has a value: zeros, and not the quotient of zeros.
        values = ops.maximum(sums[0], ops.cast(1, inputs.dtype))
        mean = ops.reshape(sums[1:], shape) / values
        squares = total(ops.square(inputs - mean))
        variance = ops.reshape(summed(ops.reshape(squares, (-1,)), "variance"), shape) / values
        return mean, variance


def _check(fused: Any, options: dict[str, Any]) -> None:
    if fused:
        raise ValueError("fused=True: SyncBatchNormalization cannot be fused, its sums travel in between")
    if options.get("synchronized"):
        raise ValueError("synchronized=True is of Keras's own BatchNormalization; here workers are always synchronized")


class _OfKeras3(_Moments):
    """For Keras 3."""

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        _check(fused, kwargs)
        super().__init__(**kwargs)
        self._bps_process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if self._bps_alone():
            return super()._moments(inputs, mask)  # type: ignore[misc]
        axes = self._reduction_axes  # type: ignore[attr-defined]
        mean, variance = self._bps_moments(inputs, axes, mask)
        return self._bps_ops.squeeze(mean, tuple(axes)), self._bps_ops.squeeze(variance, tuple(axes))


class _OfKeras2(_Moments):
    """For tf_keras, and Keras 2 of old releases of TensorFlow."""

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        _check(fused, kwargs)
        super().__init__(fused=False, **kwargs)
        self._bps_process_set = process_set

    def _calculate_mean_and_var(self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> Any:
        if self._bps_alone():
            return super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask=mask)  # type: ignore[misc]
        mean, variance = self._bps_moments(inputs, reduction_axes, mask)
        if keep_dims:
            return mean, variance
        return self._bps_ops.squeeze(mean, reduction_axes), self._bps_ops.squeeze(variance, reduction_axes)


_DOC = """Batch normalization whose mean and variance are those of the batches of all workers together, in training.

    It is for small batches per worker. Batches may be of different sizes; a masked input counts nothing. All workers
    call the layer alike, in the same order. Evaluation is that of BatchNormalization.

    Args:
        fused: False; accepted for compatibility.
        process_set: the ranks whose batches count. Saved models do not know it.
        kwargs: of BatchNormalization.

    Raises:
        ValueError: fused=True or synchronized=True; in a call: before init().
    """


@functools.cache
def _layer(base: type) -> Any:
    """SyncBatchNormalization of this BatchNormalization."""
    package = importlib.import_module(base.__module__.split(".")[0])
    newer = is_keras_3(package)
    added = _OfKeras3 if newer else _OfKeras2
    members = {
        # Of its own: for help() and inspect the class has the arguments of Layer.__new__ otherwise, which are any.
        "__init__": added.__init__,
        "__doc__": _DOC,
        "__module__": __name__,
        "_bps_sum": staticmethod(_SUMS[backend_of(package)]),
        "_bps_ops": package.ops if newer else _operations_of_tensorflow(),
    }
    made = type("SyncBatchNormalization", (added, base), members)
    # Saved models name it; a program that loads one imports byteps.keras before.
    return package.utils.register_keras_serializable("byteps")(made)


def layer_of(keras: Any = None) -> Any:
    """The class SyncBatchNormalization for this package: keras, tf_keras or tf.keras; None: the one that is installed.

    Raises:
        ImportError: there is no Keras.
        NotImplementedError: Keras 3 has another backend.
    """
    return _layer((installed_keras() if keras is None else keras).layers.BatchNormalization)
