"""Stands in for horovod.keras.callbacks: byteps.keras.callbacks with Horovod's order of arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from byteps.keras.callbacks import callbacks_of
from byteps.keras.flavor import installed_keras


def in_horovods_order(keras: Any) -> SimpleNamespace:
    """The callbacks for this package, keras or tf_keras."""
    ours = callbacks_of(keras)

    class LearningRateScheduleCallback(ours.LearningRateScheduleCallback):  # type: ignore[misc, name-defined]
        __doc__ = ours.LearningRateScheduleCallback.__doc__

        def __init__(
            self,
            initial_lr: float | None,
            multiplier: float | Callable[[float], float],
            start_epoch: int = 0,
            end_epoch: int | None = None,
            staircase: bool = True,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
        ) -> None:
            super().__init__(
                multiplier, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch, initial_lr
            )

    class LearningRateWarmupCallback(ours.LearningRateWarmupCallback):  # type: ignore[misc, name-defined]
        __doc__ = ours.LearningRateWarmupCallback.__doc__

        def __init__(
            self,
            initial_lr: float | None,
            warmup_epochs: int = 5,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
            verbose: int = 0,
        ) -> None:
            super().__init__(warmup_epochs, momentum_correction, steps_per_epoch, verbose, initial_lr)

    ours.LearningRateScheduleCallback = LearningRateScheduleCallback
    ours.LearningRateWarmupCallback = LearningRateWarmupCallback
    return ours


_INSTALLED = in_horovods_order(installed_keras())
BroadcastGlobalVariablesCallback = _INSTALLED.BroadcastGlobalVariablesCallback
MetricAverageCallback = _INSTALLED.MetricAverageCallback
LearningRateScheduleCallback = _INSTALLED.LearningRateScheduleCallback
LearningRateWarmupCallback = _INSTALLED.LearningRateWarmupCallback
BestModelCheckpoint = _INSTALLED.BestModelCheckpoint

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
