"""Reduction of the gradients of a step: what the tape, the optimizers and the strategy share."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from byteps.arguments import predivide_factor
from byteps.names import unnumbered
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session
from byteps.tensorflow.collectives import set_ranks
from byteps.tensorflow.compression import Compression, check_compression
from byteps.tensorflow.library import check_device
from byteps.tensorflow.names import step_group, unique_in_graph
from byteps.tensorflow.ops import reduce_named
from byteps.tensorflow.sparse import check_sparse_op, push_pull_slices

import tensorflow as tf


def _refuse_own_strategy() -> None:
    """Raises ValueError where byteps.tensorflow.distribute.MirroredStrategy reduces gradients already."""
    if not tf.distribute.has_strategy():
        return
    from byteps.tensorflow.distribute import MirroredStrategy

    if isinstance(tf.distribute.get_strategy(), MirroredStrategy):
        raise ValueError(
            "a DistributedOptimizer or DistributedGradientTape is used under byteps.tensorflow.distribute."
            "MirroredStrategy, which reduces gradients over all workers already; use the plain optimizer and tape there"
        )


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced. Raises TypeError, ValueError for what cannot be.

    `of_strategy`: it is what a strategy reduces by; any other is refused under a strategy that does.
    """

    op: ReduceOp = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    prefix: str = "gradient"
    process_set: ProcessSet = global_process_set
    of_strategy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", choose_op(self.op, True, adasum=True))
        if self.process_set is not global_process_set:
            check_process_set(self.process_set)
        check_compression(self.compression)
        check_device("device_dense", self.device_dense)
        check_device("device_sparse", self.device_sparse)
        if not self.of_strategy:
            _refuse_own_strategy()
        object.__setattr__(self, "predivide", predivide_factor(self.predivide, self.op))

    def _dense(
        self, gradients: list[tf.Tensor], names: list[str], priorities: list[int], group: str
    ) -> list[tf.Tensor]:
        with tf.device(self.device_dense):
            if self.predivide != 1.0:
                gradients = [gradient / tf.cast(self.predivide, gradient.dtype) for gradient in gradients]
            ranks = set_ranks(self.process_set)
            reduced = reduce_named(gradients, names, self.op, priorities, self.compression, ranks, group)
            if self.predivide != 1.0:
                reduced = [gradient * tf.cast(self.predivide, gradient.dtype) for gradient in reduced]
            return reduced

    def __call__(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """The reduced gradients; None, which a variable has that the loss does not depend on, stays None. On a rank
        outside of the process set they are its own, as with Horovod.

        The first are the most urgent: the next forward pass needs the first variables first.

        Args:
            gradients: tensors, tf.IndexedSlices and None.
            names: one for each, the same on all ranks, each of them once. In a graph they are made unique in it: a
                function may take several steps.

        Raises:
            ValueError: under a strategy of this package, which reduces gradients itself; an op that IndexedSlices have
                not, before anything is sent.
        """
        if not self.of_strategy:
            _refuse_own_strategy()
        included = self.process_set.included() is not False
        if included and not self.sparse_as_dense:
            for gradient in gradients:
                if isinstance(gradient, tf.IndexedSlices):
                    check_sparse_op(self.op, tf.convert_to_tensor(gradient.values).dtype)
        # Also where nothing is sent: what a function reduces next has the same names on all ranks.
        names = [unique_in_graph(f"{self.prefix}.{name}") for name in names]
        results: list[Any] = list(gradients)
        if not included:
            return results
        given = [index for index, gradient in enumerate(results) if gradient is not None]
        sparse = [index for index in given if isinstance(results[index], tf.IndexedSlices) and not self.sparse_as_dense]
        dense = [index for index in given if index not in sparse]
        group = step_group([names[index] for index in given], int(self.op), set_ranks(self.process_set))
        reduced = self._dense(
            [tf.convert_to_tensor(results[index]) for index in dense],
            [names[index] for index in dense],
            [-index for index in dense],
            group,
        )
        for index, gradient in zip(dense, reduced):
            results[index] = gradient
        # In eager execution these wait: a rank on which one is dense has sent that with the others.
        for index in sparse:
            with tf.device(self.device_sparse):
                results[index] = push_pull_slices(
                    results[index], names[index], self.op, -index, self.compression, self.process_set, group
                )
        return results


def source_names(sources: Sequence[Any], generic: bool = False) -> list[str]:
    """A name for each source, the same on all ranks: its place and what it is called, or, if `generic`, its place.

    Raises:
        ValueError: in eager execution, before init().
    """
    if tf.executing_eagerly():
        current_session()
    return [str(index) if generic else f"{index}.{_called(source)}" for index, source in enumerate(sources)]


def _called(source: Any) -> str:
    # Keras 3's variables have a path, which says more than "kernel".
    path = getattr(source, "path", None)
    if isinstance(path, str):
        return unnumbered(path)
    try:
        return unnumbered(source.name)
    except AttributeError:  # a tensor in eager execution
        return "tensor"


def reduce_shared(
    reduction: Reduction,
    gradients: Sequence[Any],
    sources: Sequence[Any],
    local: Container[int],
    scale_local: bool,
    generic_names: bool = False,
) -> list[Any]:
    """The gradients, reduced but for those of local sources.

    Args:
        reduction: what reduces.
        gradients: of the sources, one for each.
        sources: variables or tensors.
        local: the ids of the local ones.
        scale_local: divides gradients of local sources by the number of ranks, so that they are of the size of an
            average.
        generic_names: see source_names().
    """
    results = list(gradients)
    shared = [index for index, source in enumerate(sources) if id(source) not in local]
    names = source_names([sources[index] for index in shared], generic_names)
    for index, gradient in zip(shared, reduction([results[index] for index in shared], names)):
        results[index] = gradient
    if scale_local:
        size = reduction.process_set.size() or 1
        for index in set(range(len(results))) - set(shared):
            results[index] = _divided(results[index], size)
    return results


def _divided(gradient: Any, size: int) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)
