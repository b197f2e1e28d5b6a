"""DistributedGradientTape: a tape whose gradients are those of all workers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from byteps.arguments import check_groups
from byteps.asynchronous import refuse_asynchronous
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Average, ReduceOp
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import Reduction, reduce_shared

import tensorflow as tf


class _Tape:
    """What a DistributedGradientTape adds to the tape's own class."""

    _bps_reduction: Reduction
    _bps_local: dict[int, Any]  # variables by their ids, which another object may have once they are gone
    _bps_scale_local: bool
    _bps_given: tf.GradientTape  # the plain one
    _bps_alone: bool = False  # in jacobian(), whose loop calls gradient()

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is not reduced: it belongs to this worker alone."""
        self._bps_local[id(source)] = source

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        use_generic_names: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As the tape's own, reduced over all workers.

        Args:
            target: and the rest: of the tape.
            use_generic_names: tensors meet by the places of the sources alone, whose names may differ between ranks.

        Raises:
            tf.errors.OpError: see byteps.tensorflow.ops.
        """
        self._bps_leave_off()
        gradients = super().gradient(target, sources, output_gradients, *args, **kwargs)  # type: ignore[misc]
        if self._bps_alone:
            return gradients
        flat_sources = tf.nest.flatten(sources)
        # IndexedSlices and None are leaves here, as in TensorFlow's own.
        flat = tf.nest.flatten(gradients, expand_composites=False)
        flat = reduce_shared(
            self._bps_reduction, flat, flat_sources, self._bps_local, self._bps_scale_local, use_generic_names
        )
        return tf.nest.pack_sequence_as(sources, flat) if tf.nest.is_nested(sources) else flat[0]

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As the tape's own: of this worker alone. Its rows are those of this worker's target, which others have not.

        What is to be the same on all workers is averaged with push_pull().
        """
        self._bps_leave_off()
        with self._bps_without_reduction():
            return super().jacobian(*args, **kwargs)  # type: ignore[misc]

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As the tape's own: of this worker alone, as jacobian()."""
        self._bps_leave_off()
        with self._bps_without_reduction():
            return super().batch_jacobian(*args, **kwargs)  # type: ignore[misc]

    def _bps_leave_off(self) -> None:
        """As TensorFlow's gradient() does inside of the `with` of its tape: one that is not persistent ends there."""
        given = self._bps_given
        if given._recording and not given._persistent and given._tape is self._tape:
            given._pop_tape()

    @contextlib.contextmanager
    def _bps_without_reduction(self) -> Iterator[None]:
        self._bps_alone = True
        try:
            yield
        finally:
            self._bps_alone = False

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """gradient() in two parts, each in the order of the sources.

        Returns:
            (source, gradient) of the sources of register_local_source(), which are this worker's own; and of the
            others, reduced over all workers.

        Raises:
            tf.errors.OpError: see byteps.tensorflow.ops.
        """
        gradients = self.gradient(target, sources, output_gradients, use_generic_names=use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients, expand_composites=False)))
        is_local = [id(source) in self._bps_local for source, _ in pairs]
        return (
            [pair for pair, local in zip(pairs, is_local) if local],
            [pair for pair, local in zip(pairs, is_local) if not local],
        )


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape as `gradtape`, whose gradient() reduces over all workers::

        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = ...
        gradients = tape.gradient(loss, model.trainable_variables)

    or, behind the `with` of a plain tape, tape = bps.DistributedGradientTape(tape). All gradients of one call travel at
    the same time, those of the first sources first.

    Args:
        gradtape: the tape, whose own gradient() stays this worker's. A new one is returned, of a subclass of its class,
            which has what it has recorded.
        device_dense: where reductions are placed.
        device_sparse: the same for tf.IndexedSlices.
        compression: one of Compression's.
        sparse_as_dense: sends tf.IndexedSlices as dense tensors: right where most rows have a gradient.
        op: Average, Sum or Adasum; with dense gradients also Min, Max, Product.
        gradient_predivide_factor: divides by this before the sum, and by size() / this behind it.
        num_groups: Horovod's earlier name of `groups`, as a number.
        groups: which gradients Horovod sends together, as a number of groups or a list of lists of variables. It is
            checked and changes nothing here: each gradient is sent by itself, and all travel at the same time.
        process_set: the ranks that take part; the gradients of others stay their own.
        scale_local_gradients: divides the gradients of register_local_source() by size(), so that they are of the size
            of an average.

    Raises:
        TypeError: not a tape, no compression, or no number as a factor.
        ValueError: an unknown op, a gradient_predivide_factor that is not positive and finite or comes without
            Average, or groups that are none.
    """
    check_groups(num_groups, groups)
    refuse_asynchronous("byteps.tensorflow.DistributedGradientTape")
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"gradtape is a {type(gradtape).__name__}; it must be a tf.GradientTape")
    reduction = Reduction(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        device_dense,
        device_sparse,
        process_set=process_set,
    )
    kind = type(gradtape)
    distributed: Any = copy.copy(gradtape)
    distributed.__class__ = type(kind.__name__, (_Tape, kind), {})
    # Inside of a `with` it is the given one that leaves off recording at its end.
    distributed._recording = False
    distributed._bps_given = gradtape
    distributed._bps_reduction = reduction
    distributed._bps_local = {}
    distributed._bps_scale_local = scale_local_gradients
    return distributed


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A DistributedGradientTape that leaves the gradients of some layers alone.

    Args:
        gradtape: and the rest: of DistributedGradientTape.
        local_layers: a Keras layer or a list of such.

    Raises:
        As DistributedGradientTape.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    layers: Sequence[Any] = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        for variable in [] if layer is None else layer.trainable_variables:
            tape.register_local_source(variable)
    return tape
