"""Reduction of gradients on each backend of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from byteps.arguments import predivide_factor
from byteps.errors import FailedPreconditionError, StatusCode, UnimplementedError
from byteps.keras.compression import Compression, choice
from byteps.outlines import agree
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import CURRENT, current_session

# reduce(gradients, names): the reduced gradients; None stays None.
Reduce = Callable[[Sequence[Any], Sequence[str]], list[Any]]


@dataclass(frozen=True)
class Options:
    """How gradients are reduced. Raises TypeError, ValueError for what cannot be."""

    op: ReduceOp = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", choose_op(self.op, True, adasum=True))
        if self.process_set is not global_process_set:
            check_process_set(self.process_set)
        choice(self.compression)
        object.__setattr__(self, "predivide", predivide_factor(self.predivide, self.op))


class _Alike:
    """Whether all ranks are about to reduce the same gradients. Asked by each optimizer once, when it is about to send
    its first ones: all ranks come there at the same time, since they wait for each other's gradients.

    Args:
        options: of the optimizer.
        name: of the operation; None: nothing is compared.
    """

    def __init__(self, options: Options, name: str | None) -> None:
        self._options = options
        self._name = name

    def check(self, gradients: Sequence[Any], names: Sequence[str]) -> None:
        """Raises FailedPreconditionError, on all ranks, if they have other names, or IndexedSlices on some ranks alone.
        Other shapes and dtypes the library finds by itself."""
        name, self._name = self._name, None
        if name is None or not CURRENT.is_open():
            return  # what follows says that there is no session
        outline = []
        for gradient, called in zip(gradients, names):
            if gradient is not None:
                sparse = hasattr(gradient, "dense_shape") and not self._options.sparse_as_dense
                outline.append(f"{called} (IndexedSlices)" if sparse else called)
        try:
            agree(outline, name, "the gradients of their models", self._options.process_set)
        except BaseException:
            self._name = name  # a step that is tried again
            raise


def _on_tensorflow(options: Options, alike: _Alike) -> Reduce:
    import tensorflow as tf
    from byteps.tensorflow.compression import Compression as OfTensorFlow
    from byteps.tensorflow.gradients import Reduction

    own = Reduction(
        options.op,
        _chosen(options.compression, OfTensorFlow),
        options.sparse_as_dense,
        options.predivide,
        options.device_dense,
        options.device_sparse,
        process_set=options.process_set,
    )

    def reduce(gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        if options.process_set.included() is not False:
            try:
                alike.check(gradients, names)
            except FailedPreconditionError as error:
                raise tf.errors.FailedPreconditionError(None, None, str(error)) from None
        return own(gradients, names)

    return reduce


def _chosen(compression: Any, of_framework: Any) -> Any:
    """The framework's own compressor."""
    name = choice(compression)
    if name is None:
        return compression
    return getattr(of_framework, name)


def _on_torch(options: Options, alike: _Alike) -> Reduce:
    import torch
    from byteps.torch.allreduce import allreduce_async
    from byteps.torch.compression import Compression as OfTorch
    from byteps.torch.functions import wait_all
    from byteps.torch.ops import push_pull_async

    compression = _chosen(options.compression, OfTorch)

    def start(sent: torch.Tensor, name: str, priority: int) -> Any:
        if options.process_set is global_process_set:
            return push_pull_async(sent, name=name, priority=priority, op=options.op)
        return allreduce_async(sent, name=name, priority=priority, op=options.op, process_set=options.process_set)

    # Compiled training steps leave it to Python, as it is.
    @torch.compiler.disable
    @torch.no_grad()
    def reduce(gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        results = list(gradients)
        if options.process_set.included() is False:
            return results
        alike.check(gradients, names)
        started = []
        for index, (gradient, name) in enumerate(zip(gradients, names)):
            if gradient is None:
                continue
            if options.predivide != 1.0:
                gradient = gradient / options.predivide
            sent, context = compression.compress(gradient)
            started.append((index, start(sent, f"gradient.{name}", -index), context))
        wait_all([handle for _, handle, _ in started])
        for index, handle, context in started:
            reduced = compression.decompress(handle.synchronize(), context)
            results[index] = reduced * options.predivide if options.predivide != 1.0 else reduced
        return results

    return reduce


def refuse_several_devices() -> None:
    """Raises UnimplementedError under a distribution of Keras over several devices, whose programs XLA partitions: it
    refuses calls that have side effects, in words of its own."""
    import keras

    distribution = keras.distribution.distribution()
    devices = 1 if distribution is None else int(distribution.device_mesh.devices.size)
    if devices > 1:
        raise UnimplementedError(
            f"BytePS cannot reduce gradients under keras.distribution.{type(distribution).__name__} over {devices} "
            "devices. Give each device a worker (bpslaunch --workers), and set no distribution",
            StatusCode.UNIMPLEMENTED,
        )


def _on_jax(options: Options, alike: _Alike) -> Reduce:
    import jax
    from byteps.jax import Compression as OfJax
    from byteps.jax.ops import reduce_leaves
    from byteps.jax.versions import is_traced

    compression = _chosen(options.compression, OfJax)

    def reduce(gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        results = list(gradients)
        if options.process_set.included() is False:
            return results
        current_session()  # else the error would come with the program's results
        refuse_several_devices()
        alike.check(gradients, names)
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        factor = options.predivide
        reduced = reduce_leaves(
            [f"gradient.{names[index]}" for index in present],
            [gradients[index] if factor == 1.0 else gradients[index] / factor for index in present],
            options.op,
            [-index for index in present],
            compression,
            process_set=options.process_set,
        )
        if not any(is_traced(result) for result in reduced):
            jax.block_until_ready(reduced)  # Keras drops the errors of its logs, and the last step's are in none
        for index, result in zip(present, reduced):
            results[index] = result if factor == 1.0 else result * factor
        return results

    return reduce


_BACKENDS = {"tensorflow": _on_tensorflow, "torch": _on_torch, "jax": _on_jax}


def reduction(backend: str, options: Options, compared_as: str | None = None) -> Reduce:
    """The function that reduces gradients on this backend; on a rank outside of the process set they stay its own. With
    `compared_as`, the name of an operation, its first call compares which gradients the ranks have.

    Raises ImportError, NotImplementedError.
    """
    return _BACKENDS[backend](options, _Alike(options, compared_as))
