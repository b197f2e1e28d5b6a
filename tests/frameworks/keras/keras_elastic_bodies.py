"""A part of the job of test_keras_job.py: elastic states and their callbacks."""

from __future__ import annotations

from typing import Any

import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.callbacks import callback_class
from byteps.keras.elastic import CommitState, UpdateEpochState, model_variables
from byteps.keras.flavor import is_keras_3
from keras_models import assert_same_on_all_ranks, data, fit, keras, model_of, weights_of


def state() -> None:
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01)), seed=bps.rank())
    state = bps.elastic.KerasState(model, epoch=bps.rank(), batch=0)
    state.sync(root_rank=1)
    assert state.epoch == 1
    assert_same_on_all_ranks(model)
    before = weights_of(model)
    fit(model, bps.rank())
    assert (weights_of(model) != before).any()
    state.restore()
    np.testing.assert_array_equal(weights_of(model), before)


def _kinds_of_states() -> list[Any]:
    if keras.backend.backend() != "tensorflow":
        return [bps.elastic.KerasState]
    from byteps.tensorflow.elastic import TensorFlowKerasState

    return [bps.elastic.KerasState, TensorFlowKerasState]


def state_of_a_model_that_is_not_built() -> None:
    bps.init()
    for kind in _kinds_of_states():
        compiled = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01)), built=False)
        model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        for unbuilt in (compiled, model):
            with pytest.raises(ValueError, match="must be built first"):
                kind(unbuilt, batch=0)
        model.build((None, 8))
        kind(model, batch=0).sync()
        start = weights_of(model)
        assert bps.broadcast_object(start, 0).tobytes() == start.tobytes()


def state_before_the_first_step() -> None:
    """The optimizer's variables are part of a state that was made before it has any."""
    bps.init()
    kinds = _kinds_of_states()
    legacy = None if is_keras_3(keras) else getattr(keras.optimizers, "legacy", None)
    for kind in kinds:
        for optimizers in (keras.optimizers, *([legacy] if legacy else [])):
            model = model_of(keras, bps.DistributedOptimizer(optimizers.Adam(0.01)))
            state = kind(model, epoch=0)
            start = [np.array(variable) for variable in model_variables(model, model.optimizer)]
            fit(model, bps.rank())
            changed = [np.array(variable) for variable in model_variables(model, model.optimizer)]
            assert [array.shape for array in changed] == [array.shape for array in start]
            assert all((one != other).any() for one, other in zip(start, changed) if one.size > 4)
            state.restore()
            for one, other in zip(start, model_variables(model, model.optimizer)):
                np.testing.assert_array_equal(one, np.array(other))


def elastic() -> None:
    """A failed operation, in fit(), takes training back to the last commit, and both ends are the same."""

    def trained(fail: bool) -> tuple[np.ndarray, list[int]]:
        bps.init()
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        state = bps.elastic.KerasState(model, epoch=0)
        begun: list[int] = []

        class Failing(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                begun.append(epoch)

            def on_batch_end(self, batch: int, logs: Any = None) -> None:
                if fail and len(begun) == 2:
                    begun.append(-1)
                    bps.push_pull(np.ones(1 + bps.rank()), name="disagreement")

        @bps.elastic.run
        def train(state: Any) -> None:
            x, y = data(bps.rank())
            callbacks = [
                callback_class("Update", UpdateEpochState, keras)(state),
                callback_class("Commit", CommitState, keras)(state, batches_per_commit=1000),
                Failing(),
            ]
            model.fit(
                x, y, batch_size=8, epochs=3, initial_epoch=state.epoch, shuffle=False, verbose=0, callbacks=callbacks
            )

        train(state)
        return weights_of(model), begun

    plain, begun = trained(fail=False)
    assert begun == [0, 1, 2]
    again, begun = trained(fail=True)
    assert begun == [0, 1, -1, 1, 2]
    np.testing.assert_array_equal(plain, again)


class _Counted:
    """A state of an epoch, and how often it was committed."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1


def epochs_of_both_styles() -> None:
    """The epochs that are done, where fit() gets initial_epoch, and where it gets the number that is left, as in
    Horovod's example."""
    bps.init()
    model = model_of(keras, keras.optimizers.SGD(0.01))
    x, y = data(bps.rank())
    state: Any = _Counted(0)
    update = callback_class("Update", UpdateEpochState, keras)(state)
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(state.epoch)

    def run(**epochs: int) -> list[int]:
        seen.clear()
        model.fit(x, y, verbose=0, callbacks=[update, Seen()], **epochs)
        return list(seen)

    assert run(epochs=3, initial_epoch=state.epoch) == [1, 2, 3]
    state.epoch = 2  # as restore() has it
    assert run(epochs=4, initial_epoch=state.epoch) == [3, 4]
    state.epoch = 0
    assert run(epochs=3 - state.epoch) == [1, 2, 3]
    state.epoch = 2
    assert run(epochs=5 - state.epoch) == [3, 4, 5]


def commits_are_counted_from_the_start() -> None:
    """A fit() that has failed between two commits leaves nothing: the ranks would commit at different batches."""
    bps.init()
    state: Any = _Counted(0)
    commit = callback_class("Commit", CommitState, keras)(state, batches_per_commit=3)
    for _ in range(2):
        commit.on_train_begin()
        commit.on_batch_end(0)
        commit.on_batch_end(1)
        assert state.commits == 0
    commit.on_batch_end(2)
    assert state.commits == 1
