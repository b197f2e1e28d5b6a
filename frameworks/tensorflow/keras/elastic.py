"""byteps.keras.elastic for tf.keras."""

from __future__ import annotations

from byteps.keras.callbacks import callback_class
from byteps.keras.elastic import CommitState, KerasState, ObjectState, State, UpdateBatchState, UpdateEpochState, run

import tensorflow as tf

CommitStateCallback = callback_class("CommitStateCallback", CommitState, tf.keras)
UpdateBatchStateCallback = callback_class("UpdateBatchStateCallback", UpdateBatchState, tf.keras)
UpdateEpochStateCallback = callback_class("UpdateEpochStateCallback", UpdateEpochState, tf.keras)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
