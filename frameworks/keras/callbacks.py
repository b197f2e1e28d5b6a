"""Callbacks for fit(), for Keras 3 on all backends and for tf_keras.

All workers call fit() with the same callbacks in the same order, and with the same number of batches per epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
from byteps.arguments import root
from byteps.keras.arrays import (
    assign_values,
    broadcast_to_variables,
    multiply_values,
    push_pull_arrays,
    to_array,
    values_of,
    without_random_states,
)
from byteps.keras.built import build_optimizer
from byteps.keras.flavor import installed_keras, is_keras_3, keras_of
from byteps.keras.parts import is_multiple
from byteps.reduce_op import Average, Min
from byteps.session import current_session


def _true(_: Any) -> bool:
    return True


# What fit() of tf_keras asks its callbacks. With both installed, byteps.keras has those of Keras 3, which then work.
_ASKED_BY_TF_KERAS = {f"_implements_{what}_batch_hooks": _true for what in ("train", "test", "predict")}


def callback_class(name: str, mixin: type, keras: Any = None, base: str = "Callback") -> Any:
    """The class `name` of these methods for callbacks of keras or tf_keras."""
    package = installed_keras() if keras is None else keras
    members: dict[str, Any] = {"__doc__": mixin.__doc__, "__module__": mixin.__module__}
    if is_keras_3(package):
        members.update(_ASKED_BY_TF_KERAS)
    return type(name, (mixin, getattr(package.callbacks, base)), members)


class _BroadcastGlobalVariables:
    """Makes all workers start from the root's weights and optimizer state: before the first batch if the model is
    built on all ranks, else behind the first batch. What random numbers come from stays each worker's own.

    Args:
        root_rank: whose values are sent.
        device: accepted for compatibility.
        local_variables: variables that stay this worker's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        # By their ids; the variables are kept, lest another object gets the id of one that is gone.
        self._local = {id(variable): variable for variable in local_variables or ()}

    def register_local_var(self, variable: Any) -> None:
        """This variable stays this worker's own, too."""
        self._local[id(variable)] = variable

    def on_train_begin(self, logs: Any = None) -> None:
        """Of Callback."""
        if self.broadcast_done:
            return
        root(current_session(), self.root_rank)
        ready = np.array([int(_build(self.model))], np.int32)
        # A worker that begins with a broadcast and one that begins with a batch would wait for each other.
        if push_pull_arrays([ready], ["BroadcastGlobalVariables.ready"], Min)[0][0]:
            self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of Callback."""
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        self.broadcast_done = True
        model = self.model
        of_optimizer = model.optimizer.variables
        variables = [*model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]
        shared = [variable for variable in without_random_states(variables) if id(variable) not in self._local]
        broadcast_to_variables(shared, self.root_rank, "BroadcastGlobalVariables", model)


def _build(model: Any) -> bool:
    """Whether the model has its variables; then its optimizer gets those that belong to them."""
    if not model.built or not model.variables:
        return False
    return build_optimizer(model.optimizer, model.trainable_variables)


def _of_averages(dtype: np.dtype) -> np.dtype:
    """What averages of such numbers are: whole ones have others."""
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype


class _MetricAverage:
    """Averages the metrics of an epoch over all workers, for the callbacks behind this one (put it before those that
    look at metrics) and for the history. All workers have the same metrics. Those that are arrays stay arrays.

    Args:
        device: accepted for compatibility.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        if not logs:
            return
        arrays = {name: to_array(logs[name]) for name in sorted(logs)}
        described = [f"{name} {array.shape}" if array.ndim else name for name, array in arrays.items()]
        # Last, a number that differs if the names or shapes do: other metrics' values must not be mixed up.
        check = float(crc32("\n".join(described).encode()))
        values = np.concatenate([*(array.reshape(-1).astype(np.float64) for array in arrays.values()), [check]])
        averages = push_pull_arrays([values], ["MetricAverage"], Average)[0]
        if averages[-1] != check:
            raise ValueError(f"the workers have different metrics; these are {', '.join(described)}")
        start = 0
        for name, array in arrays.items():
            average = averages[start : start + array.size].reshape(array.shape)
            start += array.size
            logs[name] = average.astype(_of_averages(array.dtype)) if array.ndim else float(average)


class _AverageStatistics:
    """Averages, at the end of each epoch, what training keeps without gradients, over all workers: the moving mean and
    variance of BatchNormalization. Each worker updates them with its own batches alone, and so the models differ in
    evaluation. Put it before callbacks that save the model. (SyncBatchNormalization needs none of it.)

    All weights count that are not trained and hold floating-point numbers.
    """

    def __init__(self) -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        weights = [weight for weight in self.model.non_trainable_weights if "float" in str(weight.dtype)]
        names = [f"AverageStatistics.{index}" for index in range(len(weights))]
        keras = keras_of(self.model)
        assign_values(weights, push_pull_arrays(values_of(weights, keras), names, Average), keras)


def _learning_rate(optimizer: Any) -> float:
    if is_multiple(optimizer):
        raise ValueError(
            "the optimizer is a MultiOptimizer, which has no learning rate of its own: set those of its `optimizers` "
            "in a callback of yours"
        )
    value = optimizer.learning_rate
    if callable(value) and not hasattr(value, "numpy"):
        raise ValueError("the optimizer's learning rate is a schedule already; give it a number")
    return float(value if isinstance(value, (int, float)) else values_of([value], keras_of(optimizer))[0])


def _kinds_with_velocities(keras: Any) -> tuple[type, ...]:
    """The classes of optimizers whose momentum adds up updates; none of None."""
    if keras is None:
        return ()
    kinds = [keras.optimizers.SGD, keras.optimizers.RMSprop]
    if not is_keras_3(keras):
        kinds += [keras.optimizers.legacy.SGD, keras.optimizers.legacy.RMSprop]
    return tuple(kinds)


def _velocities(optimizer: Any, model: Any) -> list[Any]:
    """The variables of an optimizer with momentum that add up updates, learning rate included; of others none: those of
    Muon add up gradients."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of loss scaling
    if not isinstance(optimizer, _kinds_with_velocities(keras_of(optimizer))):
        return []
    momentum = getattr(optimizer, "momentum", 0)
    # A legacy optimizer of tf_keras keeps a variable, or 0.
    if isinstance(momentum, (int, float)) and momentum == 0:
        return []
    if hasattr(optimizer, "get_slot_names"):
        has = "momentum" in optimizer.get_slot_names()
        return [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables] if has else []
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ())


def _steps_of(params: dict[str, Any]) -> int | None:
    """The batches of an epoch, by what fit() tells its callbacks."""
    if params.get("steps"):
        return int(params["steps"])
    samples, batch_size = params.get("samples"), params.get("batch_size")  # of tf_keras in a graph
    return -(-samples // batch_size) if samples and batch_size else None


class _LearningRateSchedule:
    """Sets the learning rate to initial_lr * multiplier(epoch) within some epochs.

    Args:
        multiplier: a number, or a function of the epoch.
        start_epoch: the first epoch of it.
        end_epoch: the first epoch that is not of it; None: there is none.
        staircase: changes it at the beginning of an epoch only; else at each batch, with a fraction of the epoch.
        momentum_correction: multiplies what the optimizer has of momentum by new / old rate when the rate changes: it
            holds earlier steps with the rate of then. For SGD and RMSprop; others have nothing of the kind.
        steps_per_epoch: batches; None: found out by Keras; only needed without staircase.
        initial_lr: None: the learning rate at the beginning of the training.
    """

    def __init__(
        self,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__()
        if callable(start_epoch):
            raise TypeError("start_epoch is a function. Horovod's first argument is initial_lr: give it by its name")
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.initial_lr = initial_lr
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Of Callback."""
        if self.initial_lr is None:
            self.initial_lr = _learning_rate(self.model.optimizer)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = _steps_of(self.params or {})
            if not self.steps_per_epoch:
                raise ValueError("the number of batches per epoch is not known; give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Of Callback."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase:
            if batch == 0:
                self._set(self.multiplier(epoch))
        else:
            assert self.steps_per_epoch is not None
            self._set(self.multiplier(epoch + batch / self.steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        if logs is not None:
            logs["lr"] = _learning_rate(self.model.optimizer)

    def _set(self, multiplier: float) -> None:
        assert self.initial_lr is not None
        optimizer = self.model.optimizer
        before = _learning_rate(optimizer)
        optimizer.learning_rate = self.initial_lr * multiplier
        after = _learning_rate(optimizer)
        if self.momentum_correction and before > 0 and after != before:
            multiply_values(_velocities(optimizer, self.model), after / before, keras_of(optimizer))


class _LearningRateWarmup(_LearningRateSchedule):
    """Lets the learning rate grow from initial_lr / size() to initial_lr, batch by batch: large batches need it.

    Args:
        warmup_epochs: in how many epochs.
        momentum_correction: see LearningRateScheduleCallback.
        steps_per_epoch: batches; None: found out by Keras.
        verbose: 1: the first worker says when it is over.
        initial_lr: None: the learning rate at the beginning of the training, scaled by size() already.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        initial_lr: float | None = None,
    ) -> None:
        size = current_session().native.info()["size"]

        def multiplier(epoch: float) -> float:
            # A batch further, so that the last of each epoch has round numbers.
            assert self.steps_per_epoch is not None
            epoch += 1.0 / self.steps_per_epoch
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch, initial_lr)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose:
            rate = _learning_rate(self.model.optimizer)
            if current_session().native.info()["rank"] == 0:
                print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class _BestModelCheckpoint:
    """Keras's ModelCheckpoint that keeps the best model, and only on rank 0: put it behind MetricAverageCallback.

    Args:
        monitor: and the rest: of ModelCheckpoint, in Horovod's order.
        filepath: of ModelCheckpoint; may be set later, as the attribute.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
        **kwargs: Any,
    ) -> None:
        # ModelCheckpoint looks at the end of the name.
        placeholder = "not set.weights.h5" if save_weights_only else "not set.keras"
        super().__init__(
            filepath=placeholder if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
            **kwargs,
        )
        if filepath is None:
            self.filepath = None

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath: give it, or set the attribute before fit()")
        if current_session().native.info()["rank"] == 0:
            super()._save_model(*args, **kwargs)  # type: ignore[misc]


def callbacks_of(keras: Any = None) -> SimpleNamespace:
    """The callbacks for this package, keras or tf_keras."""
    return SimpleNamespace(
        BroadcastGlobalVariablesCallback=callback_class(
            "BroadcastGlobalVariablesCallback", _BroadcastGlobalVariables, keras
        ),
        MetricAverageCallback=callback_class("MetricAverageCallback", _MetricAverage, keras),
        AverageStatisticsCallback=callback_class("AverageStatisticsCallback", _AverageStatistics, keras),
        LearningRateScheduleCallback=callback_class("LearningRateScheduleCallback", _LearningRateSchedule, keras),
        LearningRateWarmupCallback=callback_class("LearningRateWarmupCallback", _LearningRateWarmup, keras),
        BestModelCheckpoint=callback_class("BestModelCheckpoint", _BestModelCheckpoint, keras, "ModelCheckpoint"),
    )


_INSTALLED = callbacks_of()
BroadcastGlobalVariablesCallback = _INSTALLED.BroadcastGlobalVariablesCallback
MetricAverageCallback = _INSTALLED.MetricAverageCallback
AverageStatisticsCallback = _INSTALLED.AverageStatisticsCallback
LearningRateScheduleCallback = _INSTALLED.LearningRateScheduleCallback
LearningRateWarmupCallback = _INSTALLED.LearningRateWarmupCallback
BestModelCheckpoint = _INSTALLED.BestModelCheckpoint
