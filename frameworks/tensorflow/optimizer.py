"""DistributedOptimizer: an optimizer whose gradients are those of all workers."""

from __future__ import annotations

from typing import Any

from byteps.arguments import check_groups, check_passes
from byteps.asynchronous import refuse_asynchronous
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Average, ReduceOp
from byteps.tensorflow.accumulation import Accumulation, behind, dense
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import Reduction, reduce_shared

import tensorflow as tf


class _Optimizer:
    """What a DistributedOptimizer of TensorFlow 1 adds to the optimizer's own class."""

    _bps_reduction: Reduction
    _bps_local: dict[int, Any]  # variables by their ids, which another object may have once they are gone
    _bps_scale_local: bool
    _bps_accumulation: Accumulation | None  # with backward_passes_per_step
    _bps_is_last: Any  # whether the pass of the last compute_gradients() ends a step

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced: it belongs to this worker alone."""
        self._bps_local[id(variable)] = variable

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the optimizer's own, reduced over all workers. With backward_passes_per_step: zeros, but for the last pass
        of a step.

        Raises:
            tf.errors.OpError: see byteps.tensorflow.ops.
            UnimplementedError, ValueError: see byteps.tensorflow.accumulation.
        """
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        variables = [variable for _, variable in pairs]
        gradients = [gradient for gradient, _ in pairs]

        def reduced(own: Any) -> Any:
            return reduce_shared(self._bps_reduction, own, variables, self._bps_local, self._bps_scale_local)

        accumulation = self._bps_accumulation
        if accumulation is None:
            return list(zip(reduced(gradients), variables))
        gradients = [dense(gradient, self._bps_reduction.sparse_as_dense) for gradient in gradients]
        self._bps_is_last = accumulation.add(gradients, variables)
        given = [index for index, gradient in enumerate(gradients) if gradient is not None]
        zeros = [tf.zeros_like(gradients[index]) for index in given]

        def of_a_step() -> list[Any]:
            sums = reduced(accumulation.take())
            return [sums[index] for index in given]

        values = tf.nest.flatten(tf.cond(self._bps_is_last, of_a_step, lambda: zeros))
        for index, value in zip(given, values):
            gradients[index] = value
        return list(zip(gradients, variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own; with backward_passes_per_step in the last pass of a step alone."""
        own = super().apply_gradients  # type: ignore[misc]
        pairs = list(grads_and_vars)
        if self._bps_accumulation is None or self._bps_is_last is None:
            return own(pairs, *args, **kwargs)
        is_last, self._bps_is_last = self._bps_is_last, None

        def applied() -> Any:
            with behind([own(pairs, *args, **kwargs)]):
                return tf.constant(True)

        done = tf.cond(is_last, applied, lambda: tf.constant(False))
        return None if tf.executing_eagerly() else tf.group(done)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp | int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `optimizer` one that reduces gradients over all workers before it applies them.

    Args:
        optimizer: of tf.compat.v1.train, of Keras 3 or of tf_keras; the same object is returned, of a subclass of its
            class. For those of Keras see byteps.keras.DistributedOptimizer.
        name: see byteps.keras.DistributedOptimizer; of no use to optimizers of TensorFlow 1.
        use_locking: accepted for compatibility; the optimizer's own counts.
        device_dense: where reductions are placed.
        device_sparse: the same for tf.IndexedSlices.
        compression: one of Compression's.
        sparse_as_dense: sends tf.IndexedSlices as dense tensors: right where most rows have a gradient.
        backward_passes_per_step: gradients of that many passes are added up before they are reduced and applied. With
            optimizers of TensorFlow 1 and tf_keras the sums are variables: in a graph of TensorFlow 1 local ones.
        op: Average, Sum or Adasum (of gradients, not of steps); with dense gradients also Min, Max, Product.
        gradient_predivide_factor: divides by this before the sum, and by size() / this behind it.
        average_aggregated_gradients: with backward_passes_per_step: divides the sum of the steps by their number.
        num_groups: Horovod's earlier name of `groups`, as a number.
        groups: which gradients Horovod sends together, as a number of groups or a list of lists of variables. It is
            checked and changes nothing here: each gradient travels when it is there, which is faster.
        process_set: the ranks that take part; the gradients of others stay their own.
        scale_local_gradients: divides the gradients of register_local_var() by size(), so that they are of the size of
            an average.

    Raises:
        TypeError: not an optimizer (a ValueError, too, as Horovod's), no compression, or no number as a factor.
        ValueError: an unknown op, a gradient_predivide_factor that is not positive and finite or comes without
            Average, groups that are none, or backward_passes_per_step where it cannot be.
        UnimplementedError: BYTEPS_ENABLE_ASYNC=1, and an optimizer of TensorFlow 1.
    """
    check_groups(num_groups, groups)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from byteps.keras.optimizer import DistributedOptimizer as KerasOptimizer

        return KerasOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    refuse_asynchronous("byteps.tensorflow.DistributedOptimizer of an optimizer of TensorFlow 1")
    del name, use_locking
    check_passes(backward_passes_per_step)
    reduction = Reduction(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        device_dense,
        device_sparse,
        process_set=process_set,
    )
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Optimizer, kind), {})
    optimizer._bps_reduction = reduction
    optimizer._bps_local = {}
    optimizer._bps_scale_local = scale_local_gradients
    optimizer._bps_accumulation = None
    optimizer._bps_is_last = None
    if backward_passes_per_step > 1:
        optimizer._bps_accumulation = Accumulation(backward_passes_per_step, average_aggregated_gradients)
    return optimizer
