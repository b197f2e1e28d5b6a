"""Training that survives a failed operation, on all backends; see byteps.elastic.

    state = bps.elastic.KerasState(model, epoch=0, batch=0)

    @bps.elastic.run
    def train(state):
        model.fit(..., initial_epoch=state.epoch, callbacks=[
            bps.elastic.UpdateEpochStateCallback(state),
            bps.elastic.CommitStateCallback(state, batches_per_commit=100),
        ])

    train(state)

All workers commit at the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.arguments import root
from byteps.elastic import ObjectState, State, run
from byteps.keras.arrays import assign_values, broadcast_to_variables, values_of, without_random_states
from byteps.keras.built import build_optimizer, refuse_unbuilt
from byteps.keras.callbacks import callback_class
from byteps.keras.flavor import keras_of
from byteps.session import current_session

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(ObjectState):
    """A model with its optimizer, and values.

    Args:
        model: a built model.
        optimizer: None: the model's, if it is compiled.
        values: further values, as of ObjectState.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        refuse_unbuilt(model)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(**values)
        self.save()

    def _variables(self) -> Sequence[Any]:
        return model_variables(self.model, self.optimizer)

    def save(self) -> None:
        """Keeps values and variables as they are now."""
        # What raises here, as variables do that a failed step has made, leaves all that was saved before.
        variables = self._variables()
        arrays = [array.copy() for array in values_of(variables, keras_of(self.model))]
        super().save()
        self._kept = variables, arrays

    def restore(self) -> None:
        """Comes back to what was saved last."""
        super().restore()
        assign_values(*self._kept, keras_of(self.model))

    def sync(self, root_rank: int = 0) -> None:
        """Takes over the root's variables and values, and saves them. What random numbers come from stays this
        worker's own; save() and restore() have it like all variables."""
        root_rank = root(current_session(), root_rank)
        broadcast_to_variables(without_random_states(self._variables()), root_rank, "KerasState", self.model)
        super().sync(root_rank)


def model_variables(model: Any, optimizer: Any) -> list[Any]:
    """All variables of a model and its optimizer, which is built for that."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    if optimizer is None:
        return list(model.variables)
    build_optimizer(optimizer, model.trainable_variables)
    of_optimizer = optimizer.variables
    return [*model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]


class CommitState:
    """Commits a state every so many batches, and at the end of each epoch."""

    def __init__(self, state: ObjectState, batches_per_commit: int = 1) -> None:
        super().__init__()
        if not isinstance(batches_per_commit, int) or batches_per_commit <= 0:
            raise ValueError(f"batches_per_commit is {batches_per_commit!r}; it must be a positive integer")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Of Callback."""
        # A fit() that has failed has counted batches since its last commit, on each rank as many as it got to.
        self._left = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of Callback."""
        self._left -= 1
        if self._left == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        self._commit()

    def _commit(self) -> None:
        self._left = self.batches_per_commit
        self.state.commit()


class UpdateBatchState:
    """Keeps state.batch at the number of batches of this epoch that are done."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of Callback."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps state.epoch at the number of epochs that are done: initial_epoch of the next fit(), or what its number of
    epochs is less by, as in fit(epochs=24 - state.epoch), which counts them from 0 again."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._offset: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Of Callback."""
        self._offset = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        if self._offset is None:
            self._offset = getattr(self.state, "epoch", epoch) - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Of Callback."""
        self.state.epoch = (self._offset or 0) + epoch + 1


CommitStateCallback = callback_class("CommitStateCallback", CommitState)
UpdateBatchStateCallback = callback_class("UpdateBatchStateCallback", UpdateBatchState)
UpdateEpochStateCallback = callback_class("UpdateEpochStateCallback", UpdateEpochState)
