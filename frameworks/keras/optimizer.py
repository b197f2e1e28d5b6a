"""DistributedOptimizer: an optimizer of Keras whose gradients are those of all workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional
from weakref import WeakValueDictionary

from byteps.arguments import check_groups, check_passes
from byteps.asynchronous import asynchronous_training, check_asynchronous
from byteps.compression import NoneCompressor
from byteps.keras.arrays import variable_name
from byteps.keras.compression import Compression
from byteps.keras.copies import keep_in_copies
from byteps.keras.flavor import backend_of, is_keras_3, keras_of
from byteps.keras.gradients import Options, Reduce, reduction
from byteps.keras.logs import raise_errors_of_logs
from byteps.keras.parts import is_multiple, parts_of
from byteps.keras.saved_class import saved_as
from byteps.keras.server_parameters import OnJax, ServerParameters, server_parameters
from byteps.process_set import ProcessSet, global_process_set, known_process_set
from byteps.reduce_op import Average, ReduceOp, Sum

_SCALED_TWICE = (
    "a LossScaleOptimizer was put around a DistributedOptimizer. A worker whose gradients overflow would leave the "
    "others waiting. Put it inside: DistributedOptimizer(LossScaleOptimizer(optimizer))"
)

_TWICE = "the optimizer is a DistributedOptimizer already"

_NORM_OF_ALL = (
    "global_clipnorm is the norm of all gradients, local ones too, and so another on each worker: the variables that "
    "they share would part. With local variables use clipnorm or clipvalue, which look at each gradient alone"
)


class _NoOptimizerError(TypeError, ValueError):
    """A TypeError, and the ValueError of horovod.tensorflow."""


# One for each gradient; None: it stays this worker's own.
Names = Sequence[Optional[str]]


def gradient_names(variables: Any, prefix: str, local: Container[int] = ()) -> list[str | None]:
    """A name for each variable's gradient, the same on all ranks: its place and what it is called. None for those
    whose variable is local: `local` holds their ids."""
    return [
        None if id(variable) in local else f"{prefix}{index}.{variable_name(variable)}"
        for index, variable in enumerate(variables)
    ]


def _each(function: Callable[[Any], Any], gradient: Any) -> Any:
    """The function of a gradient, also of IndexedSlices, which TensorFlow gives for embeddings."""
    if gradient is None:
        return None
    if hasattr(gradient, "dense_shape"):
        return type(gradient)(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _as(number: Any, tensor: Any, keras: Any) -> Any:
    """A tensor of one number, with the dtype of another tensor."""
    if is_keras_3(keras):
        return keras.ops.cast(number, tensor.dtype)
    import tensorflow as tf

    return tf.cast(number, tensor.dtype)


def _overflow_in(gradients: Sequence[Any], keras: Any) -> Any:
    """1 if a number of the gradients is infinite or none, else 0: a tensor."""
    values = [gradient.values if hasattr(gradient, "dense_shape") else gradient for gradient in gradients]
    if is_keras_3(keras):
        ops = keras.ops
        found = [ops.logical_not(ops.all(ops.isfinite(value))) for value in values]
        return ops.cast(ops.any(ops.stack(found)), "float32") if found else ops.zeros((), "float32")
    import tensorflow as tf

    found = [tf.logical_not(tf.reduce_all(tf.math.is_finite(value))) for value in values]
    return tf.cast(tf.reduce_any(tf.stack(found)), tf.float32) if found else tf.zeros(())


def _at_most_one(number: Any, keras: Any) -> Any:
    """The number, or 1 if that is less: a tensor."""
    if is_keras_3(keras):
        return keras.ops.minimum(number, 1.0)
    import tensorflow as tf

    return tf.minimum(number, 1.0)


@dataclass(frozen=True)
class Settings:
    """The arguments of a DistributedOptimizer, which its copies get."""

    name: str | None
    options: Options
    passes: int
    average_passes: bool
    scale_local: bool

    def __deepcopy__(self, memo: Any) -> Settings:
        return self  # with the same ProcessSet

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of pickle. Raises ValueError for a process set that the session here does not know."""
        self.__dict__.update(state)
        process_set = known_process_set(self.options.process_set)
        self.__dict__["options"] = replace(self.options, process_set=process_set)


class Distributed:
    """What a DistributedOptimizer adds to the optimizer's own class. The members are those of the class, not of the
    object: Keras tracks what is set on the object. Each DistributedOptimizer has a class of its own."""

    _bps_kind: type  # the optimizer's own class
    _bps_settings: Settings
    _bps_reduce: Reduce
    _bps_count: Reduce | None = None  # the sum of numbers; of an optimizer that skips a step whose gradients overflow
    _bps_prefix: str = ""
    _bps_passes: int = 1
    _bps_average_passes: bool = False
    _bps_accumulation: Any = None  # of tf_keras
    _bps_checked: bool = False
    _bps_servers: ServerParameters | None = None  # in asynchronous training
    # Variables by their ids. Keras keeps the class, which keeps no variables of a model that is gone.
    _bps_local: WeakValueDictionary[int, Any]
    _bps_local_divisors: ProcessSet | None = None  # those ranks' number

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced: it belongs to this worker alone.

        Raises:
            ValueError: the optimizer has a global_clipnorm.
        """
        self._bps_refuse_norm_of_all()
        self._bps_local[id(variable)] = variable

    @classmethod
    def from_config(cls, config: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own; a DistributedOptimizer with the same settings."""
        kind: Any = cls._bps_kind
        return distribute(kind.from_config(config, *args, **kwargs), cls._bps_settings)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Of copy and pickle, where the optimizer has its own way: a DistributedOptimizer with the same settings.

        Raises:
            TypeError: with variables of register_local_var().
        """
        reduced = super().__reduce_ex__(protocol)
        if len(reduced) > 2:  # the object's members, which a copy with this class gets
            return reduced
        if self._bps_local:
            raise TypeError(
                "a DistributedOptimizer with local variables cannot be copied without its model: the copy would not "
                "know which variables are local. Copy the model, or make another PartialDistributedOptimizer"
            )
        function, arguments = reduced
        if getattr(function, "__self__", None) is type(self):
            function = getattr(self._bps_kind, function.__name__)
        return distributed_again, (function, arguments, self._bps_settings)

    def _bps_step(self, variables: Any, own_step: Callable[[], Any]) -> Any:
        """A step of asynchronous training. Local variables stay this worker's own."""
        names = gradient_names(variables, self._bps_prefix, self._bps_local)
        shared = [(variable, name) for variable, name in zip(variables, names) if name is not None]
        assert self._bps_servers is not None
        return self._bps_servers.step([variable for variable, _ in shared], [name for _, name in shared], own_step)

    def _bps_reduced_by_name(self, gradients: Sequence[Any], names: Names) -> list[Any]:
        """The gradients of all workers, but for those without a name."""
        shared = [index for index, name in enumerate(names) if name is not None]
        has_local = len(shared) < len(names)
        if has_local:
            self._bps_refuse_norm_of_all()
        divisor = 1 if self._bps_local_divisors is None else self._bps_local_divisors.size() or 1
        results = [
            _each(lambda own: own / divisor, gradient) if name is None else gradient
            for gradient, name in zip(gradients, names)
        ]
        given = [name for name in names if name is not None]
        for index, gradient in zip(shared, self._bps_reduce([results[index] for index in shared], given)):
            results[index] = gradient
        if has_local and self._bps_count is not None:
            return self._bps_overflow_everywhere(results, names)
        return results

    def _bps_refuse_norm_of_all(self) -> None:
        """Of optimizers with local variables; in asynchronous training each worker clips for itself anyway."""
        if self._bps_servers is None and any(getattr(each, "global_clipnorm", None) for each in parts_of(self)):
            raise ValueError(_NORM_OF_ALL)

    def _bps_overflow_everywhere(self, gradients: list[Any], names: Names) -> list[Any]:
        """The gradients, one of which is infinite if a local one of any worker is not finite: loss scaling looks at
        local ones, too, and the workers must skip the same steps."""
        keras = keras_of(self)
        local = [gradient for gradient, name in zip(gradients, names) if name is None and gradient is not None]
        assert self._bps_count is not None
        # Not a maximum, which there is none of while a rank has joined.
        (workers,) = self._bps_count([_overflow_in(local, keras)], [f"{self._bps_prefix}overflow"])
        overflow = _at_most_one(workers, keras)
        infinite = overflow / (1 - overflow)  # or 0
        given = [index for index, gradient in enumerate(gradients) if gradient is not None]
        # Of IndexedSlices there may be no rows.
        for index in sorted(given, key=lambda index: hasattr(gradients[index], "dense_shape"))[:1]:
            gradients[index] = _each(lambda own: own + _as(infinite, own, keras), gradients[index])
        return gradients

    def _bps_summed_passes(self, grads: Any) -> Any:
        """Of the mean of several passes, which Keras 3 makes, or of what it makes that of: their sum, if that was asked
        for."""
        if self._bps_passes == 1 or self._bps_average_passes:
            return grads
        return [_each(lambda mean: mean * self._bps_passes, gradient) for gradient in grads]

    def _bps_each_step(self, pairs: Any, apply: Callable[[Any], Any]) -> Any:
        """Of tf_keras, which accumulates nothing: calls apply(pairs) with gradients and variables, or, with
        backward_passes_per_step, with the sums of so many passes behind the last of them."""
        if self._bps_accumulation is None:
            return apply(pairs)
        from byteps.tensorflow.accumulation import dense

        variables = [variable for _, variable in pairs]
        gradients = [dense(gradient, self._bps_settings.options.sparse_as_dense) for gradient, _ in pairs]
        # Schedules count passes, as without accumulation.
        count = getattr(self, "inner_optimizer", self).iterations
        return self._bps_accumulation.step(
            gradients, variables, lambda sums: apply(list(zip(sums, variables))), lambda: count.assign_add(1)
        )

    def _bps_refuse_scaling_outside(self) -> None:
        """compile() puts loss scaling around what it finds, and there is no word of it but who calls."""
        if type(self)._bps_checked:
            return
        frame = sys._getframe(1)
        while frame is not None:
            caller = frame.f_locals.get("self")
            if (
                caller is not self
                and "LossScaleOptimizer" in type(caller).__name__
                # Of Keras 3; of tf_keras, where one that is not dynamic looks at no gradients.
                and (hasattr(caller, "dynamic_scale") or getattr(caller, "dynamic", False))
            ):
                raise ValueError(_SCALED_TWICE)
            frame = frame.f_back
        type(self)._bps_checked = True


class _OfKeras3(Distributed):
    """All training loops of Keras 3 go through apply()."""

    def _bps_names_of(self, trainable_variables: Any) -> list[str | None]:
        """The names of the gradients; none before the optimizer is built, where its own check raises."""
        return gradient_names(self._bps_given(trainable_variables), self._bps_prefix, self._bps_local)

    def _bps_given(self, trainable_variables: Any) -> Any:
        return getattr(self, "_trainable_variables", ()) if trainable_variables is None else trainable_variables

    def _bps_reduced(self, grads: Any, trainable_variables: Any) -> list[Any]:
        gradients = list(grads)
        names = self._bps_names_of(trainable_variables)
        return self._bps_reduced_by_name(gradients, names) if len(names) == len(gradients) else gradients


class Keras3Optimizer(_OfKeras3):
    """For optimizers of Keras 3."""

    _bps_backend: str
    # While apply() runs with accumulation of gradients: the names of those that are applied.
    _bps_names: tuple[str | None, ...] | None = None

    def _bps_accumulates(self) -> bool:
        # On JAX every step computes an update, and takes it or not: there is nothing to be saved.
        # A MultiOptimizer does not accumulate, and what accumulates in it gets the gradients of all workers.
        accumulates = getattr(self, "gradient_accumulation_steps", None) and not is_multiple(self)
        return bool(accumulates) and self._bps_backend != "jax"

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's own, with the gradients of all workers. With gradient_accumulation_steps they are reduced
        when they are applied."""
        self._bps_refuse_scaling_outside()
        if not self._bps_accumulates():
            super().apply(self._bps_reduced(grads, trainable_variables), trainable_variables)  # type: ignore[misc]
            return
        grads, names = list(grads), self._bps_names_of(trainable_variables)
        # Of layers in float8: their scales.
        overwrites = [
            bool(getattr(each, "overwrite_with_gradient", False)) for each in self._bps_given(trainable_variables)
        ]
        if len(names) == len(grads):
            grads = self._bps_overwriting_reduced(grads, names, overwrites)
        kind = type(self)
        rows = zip(grads, names, overwrites)
        kind._bps_names = tuple(name for gradient, name, other in rows if gradient is not None and not other)
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            kind._bps_names = None

    def _bps_overwriting_reduced(self, grads: list[Any], names: Names, overwrites: Sequence[bool]) -> list[Any]:
        """The gradients, of which those that take their variables' place at each step are reduced. Keras does not hand
        them to _clip_gradients()."""
        at_once = [(index, name) for index, name in enumerate(names) if name is not None and overwrites[index]]
        if at_once:
            reduced = self._bps_reduce([grads[index] for index, _ in at_once], [name for _, name in at_once])
            for (index, _), gradient in zip(at_once, reduced):
                grads[index] = gradient
        return grads

    def _clip_gradients(self, grads: Any) -> Any:
        """Every update goes through here, with the mean of the accumulated gradients."""
        if self._bps_names is not None:
            grads = self._bps_reduced_by_name(list(grads), self._bps_names)
        return super()._clip_gradients(self._bps_summed_passes(grads))  # type: ignore[misc]


class Keras3LossScaleOptimizer(_OfKeras3):
    """For LossScaleOptimizer of Keras 3: gradients are reduced before it looks whether they are finite, so that all
    workers take the same decision, also where the optimizer inside accumulates gradients."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's own, with the gradients of all workers."""
        reduced = self._bps_summed_passes(self._bps_reduced(grads, trainable_variables))
        super().apply(reduced, trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """As the optimizer's own, with the gradients of all workers; JAX comes here and not to apply()."""
        reduced = self._bps_summed_passes(self._bps_reduced(grads, None))
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


class Multiple:
    """What a MultiOptimizer, or loss scaling around one, has beside one of the other classes: the optimizers that a
    function chooses for the variables are there when it is built."""

    def build(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. Raises ValueError for optimizers inside that are not possible."""
        super().build(*args, **kwargs)  # type: ignore[misc]
        assert isinstance(self, Distributed)
        _refuse_distributed(parts_of(self)[1:])
        if self._bps_local:
            self._bps_refuse_norm_of_all()


class TfKerasOptimizer(Distributed):
    """For tf_keras, its LossScaleOptimizer and its legacy optimizers included."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with the gradients of all workers."""
        self._bps_refuse_scaling_outside()
        own = super().apply_gradients  # type: ignore[misc]

        def apply(pairs: Any) -> Any:
            variables = [variable for _, variable in pairs]
            names = gradient_names(variables, self._bps_prefix, self._bps_local)
            gradients = self._bps_reduced_by_name([gradient for gradient, _ in pairs], names)
            return own(list(zip(gradients, variables)), *args, **kwargs)

        return self._bps_each_step(list(grads_and_vars), apply)


class AsyncKeras3Optimizer(Distributed):
    """For asynchronous training, and optimizers of Keras 3: the optimizer's own step, and what it has changed is added
    to the parameters that the servers keep (docs/async.md)."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's own, with this worker's gradients; the variables then are those of the servers."""
        self._bps_refuse_scaling_outside()
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = getattr(self, "_trainable_variables", ()) if trainable_variables is None else trainable_variables
        own = super().apply  # type: ignore[misc]
        self._bps_step(variables, lambda: own(grads, trainable_variables))

    def _clip_gradients(self, grads: Any) -> Any:
        """Every update goes through here, with the mean of the accumulated gradients."""
        return super()._clip_gradients(self._bps_summed_passes(grads))  # type: ignore[misc]


class AsyncKeras3LossScaleOptimizer(AsyncKeras3Optimizer):
    """The same for LossScaleOptimizer of Keras 3."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's own, with this worker's gradients; the variables then are those of the servers."""
        super().apply(self._bps_summed_passes(grads), trainable_variables)


class AsyncKeras3LossScaleOptimizerOnJax(AsyncKeras3Optimizer):
    """The same for LossScaleOptimizer of Keras 3 on JAX, which does not come to apply()."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """As the optimizer's own; the variables then are those of the servers. A step that overflows adds nothing."""
        self._bps_refuse_scaling_outside()
        grads = self._bps_summed_passes(grads)
        own = super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]
        values, optimizer_variables = list(own[0]), own[1]
        names = gradient_names(self._trainable_variables, self._bps_prefix, self._bps_local)  # type: ignore[attr-defined]
        shared = [index for index, name in enumerate(names) if name is not None]
        assert isinstance(self._bps_servers, OnJax)
        found = self._bps_servers.exchange(
            [trainable_variables[index] for index in shared],
            [values[index] for index in shared],
            [name for name in names if name is not None],
        )
        for index, value in zip(shared, found):
            values[index] = value
        return values, optimizer_variables


class AsyncTfKerasOptimizer(Distributed):
    """The same for tf_keras."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with this worker's gradients; the variables then are those of the servers."""
        self._bps_refuse_scaling_outside()
        own = super().apply_gradients  # type: ignore[misc]

        def apply(pairs: Any) -> Any:
            return self._bps_step([variable for _, variable in pairs], lambda: own(pairs, *args, **kwargs))

        return self._bps_each_step(list(grads_and_vars), apply)


def _mixin(optimizer: Any, keras: Any, asynchronous: bool) -> type[Distributed]:
    if not is_keras_3(keras):
        return AsyncTfKerasOptimizer if asynchronous else TfKerasOptimizer
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if asynchronous and scales:
        return AsyncKeras3LossScaleOptimizerOnJax if backend_of(keras) == "jax" else AsyncKeras3LossScaleOptimizer
    if asynchronous:
        return AsyncKeras3Optimizer
    return Keras3LossScaleOptimizer if scales else Keras3Optimizer


def _accumulate(optimizer: Any, keras: Any, passes: int) -> None:
    """Lets the optimizer add up gradients of several steps. Raises ValueError."""
    check_passes(passes)
    if passes == 1 or not is_keras_3(keras):
        return
    if is_multiple(optimizer):
        raise ValueError(
            f"backward_passes_per_step is {passes}; with a MultiOptimizer it must be 1: give its optimizers "
            "gradient_accumulation_steps"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # which accumulates
    if optimizer.gradient_accumulation_steps == passes:
        return  # as in the file of a model whose DistributedOptimizer had them
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"backward_passes_per_step is {passes}, the optimizer's gradient_accumulation_steps "
            f"{optimizer.gradient_accumulation_steps}; give one of the two, or the same number"
        )
    if optimizer.built:
        raise ValueError(f"backward_passes_per_step is {passes}; it must be given before the optimizer is built")
    optimizer.gradient_accumulation_steps = passes


def _with_loss_scaling(optimizer: Any, keras: Any) -> Any:
    """The optimizer, in a LossScaleOptimizer if compile() would put it into one, which must then be inside."""
    if is_keras_3(keras):
        policy, scaling = keras.config.dtype_policy().name, keras.optimizers.LossScaleOptimizer
    else:
        policy, scaling = keras.mixed_precision.global_policy().name, keras.mixed_precision.LossScaleOptimizer
    if policy != "mixed_float16" or isinstance(optimizer, scaling):
        return optimizer
    return scaling(optimizer)


def _skips_overflows(optimizer: Any, keras: Any) -> bool:
    """Whether it is a LossScaleOptimizer that looks whether gradients are finite."""
    of = keras.optimizers if is_keras_3(keras) else keras.mixed_precision
    return isinstance(optimizer, of.LossScaleOptimizer) and bool(getattr(optimizer, "dynamic", True))


def is_distributed(optimizer: Any) -> bool:
    """Whether it is a DistributedOptimizer."""
    return isinstance(optimizer, Distributed)


def _refuse_distributed(optimizers: Sequence[Any]) -> None:
    """Raises ValueError if one of them is a DistributedOptimizer."""
    if any(is_distributed(each) for each in optimizers):
        raise ValueError(_TWICE)


def distribute(optimizer: Any, settings: Settings) -> Any:
    """Gives a plain optimizer of Keras the class of a DistributedOptimizer with these settings, and returns it."""
    keras, options = keras_of(optimizer), settings.options
    backend = backend_of(keras)
    if backend == "jax":
        raise_errors_of_logs(keras)
    asynchronous = asynchronous_training()
    if asynchronous:
        check_asynchronous(
            options.op,
            compression=options.compression not in (Compression.none, NoneCompressor),
            gradient_predivide_factor=options.predivide != 1.0,
            process_set=options.process_set is not global_process_set,
        )
    kind = type(optimizer)
    count: Any = None
    if not asynchronous and _skips_overflows(optimizer, keras):
        of_numbers = replace(options, op=Sum, compression=Compression.none, predivide=1.0)
        count = staticmethod(reduction(backend, of_numbers))
    accumulation: Any = None
    if settings.passes > 1 and not is_keras_3(keras):
        from byteps.tensorflow.accumulation import Accumulation

        accumulation = Accumulation(settings.passes, settings.average_passes)
    prefix = "" if settings.name is None else f"{settings.name}."
    members = {
        "__doc__": kind.__doc__,
        "_bps_kind": kind,
        "_bps_settings": settings,
        "_bps_reduce": staticmethod(reduction(backend, options, f"{prefix}DistributedOptimizer.outline")),
        "_bps_count": count,
        "_bps_prefix": prefix,
        "_bps_passes": settings.passes,
        "_bps_average_passes": settings.average_passes,
        "_bps_accumulation": accumulation,
        "_bps_backend": backend,
        "_bps_local": WeakValueDictionary(),
        "_bps_local_divisors": options.process_set if settings.scale_local else None,
        "_bps_servers": server_parameters(backend) if asynchronous else None,
    }
    added: tuple[type, ...] = (_mixin(optimizer, keras, asynchronous),)
    if is_multiple(optimizer):
        added = (*added, Multiple)
    made = type(kind.__name__, (*added, kind), members)
    saved_as(made, kind, keras)
    optimizer.__class__ = made
    return optimizer


def distributed_again(function: Callable[..., Any], arguments: Any, settings: Settings) -> Any:
    """Of copy and pickle: the plain optimizer that the function makes, as a DistributedOptimizer."""
    return distribute(function(*arguments), settings)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp | int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `optimizer` one that applies the gradients of all workers.

    With BYTEPS_ENABLE_ASYNC=1 the servers keep the variables, and no rank waits for the gradients of others:
    docs/async.md.

    The object stays what it is, with its state, its name and its class's name: a saved model names the plain optimizer.
    Clipping (clipnorm, global_clipnorm, clipvalue), weight decay and moving averages work on the reduced gradients. If
    the global policy is mixed_float16 the optimizer is put into a LossScaleOptimizer first, as compile() would do.

    Args:
        optimizer: of Keras 3 on TensorFlow, JAX or PyTorch, or of tf_keras; LossScaleOptimizer and MultiOptimizer
            included.
        name: put before the names of the gradients: give one where a program of JAX applies two optimizers. The same on
            all ranks. The optimizer keeps its own name.
        device_dense: where reductions are placed; on TensorFlow.
        device_sparse: the same for tf.IndexedSlices.
        compression: one of Compression's.
        sparse_as_dense: sends tf.IndexedSlices as dense tensors: right where most rows have a gradient.
        gradient_predivide_factor: divides by this before the sum, and by size() / this behind it.
        op: Average, Sum, Min, Max or Product; or Adasum, of gradients.
        backward_passes_per_step: gradients of that many steps are added up before they are applied; with Keras 3 it is
            given before the optimizer is built.
        average_aggregated_gradients: divides the sum of the steps by their number.
        num_groups: Horovod's earlier name of `groups`, as a number.
        groups: which gradients Horovod sends together, as a number of groups or a list of lists of variables. It is
            checked and changes nothing here: each gradient travels when it is there, which is faster.
        process_set: the ranks that take part; the gradients of others stay their own.
        scale_local_gradients: divides the gradients of register_local_var() by size(), so that they are of the size of
            an average.

    Returns:
        `optimizer` itself, or the LossScaleOptimizer around it.

    Raises:
        TypeError: no optimizer of Keras, no compression, or no number as a factor.
        ValueError: an unknown op, a DistributedOptimizer already, a gradient_predivide_factor that is not positive and
            finite or comes without Average, groups that are none, or backward_passes_per_step where it cannot be.
    """
    check_groups(num_groups, groups)
    keras = keras_of(optimizer)
    # A MultiOptimizer has no learning rate.
    is_optimizer = hasattr(optimizer, "apply_gradients") and (
        hasattr(optimizer, "learning_rate") or is_multiple(optimizer)
    )
    if keras is None or not is_optimizer:
        raise _NoOptimizerError(
            f"optimizer is a {type(optimizer).__name__}; it must be an optimizer of keras or tf_keras. For others see "
            "byteps.tensorflow, byteps.torch and byteps.jax"
        )
    _refuse_distributed(parts_of(optimizer))
    options = Options(
        op, compression, sparse_as_dense, gradient_predivide_factor, device_dense, device_sparse, process_set
    )
    _accumulate(optimizer, keras, backward_passes_per_step)
    optimizer = _with_loss_scaling(optimizer, keras)

    keep_in_copies(keras)
    settings = Settings(name, options, backward_passes_per_step, average_aggregated_gradients, scale_local_gradients)
    return distribute(optimizer, settings)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp | int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedOptimizer that leaves the gradients of some layers alone.

    Args:
        optimizer: and the rest: of DistributedOptimizer.
        local_layers: a layer that is built, or a list of such.

    Raises:
        As DistributedOptimizer; ValueError also for a layer that is not built, whose variables are not there yet, and
            for an optimizer with a global_clipnorm.
    """
    layers: Sequence[Any] = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    layers = [layer for layer in layers if layer is not None]
    for layer in layers:
        if not layer.built:
            raise ValueError(f"local_layers: {layer.name} is not built; call it, or its build(), before")
    optimizer = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_variables:
            optimizer.register_local_var(variable)
    return optimizer
