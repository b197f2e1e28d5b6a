"""fit() of a worker whose step fails: a lost worker, workers that disagree, no session. It ends with an exception, and
so does the job; a KerasState brings the model back behind such a step."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

keras = framework("keras")

import byteps.keras as bps
import numpy as np
from byteps.arrays import push_pull
from byteps.keras.callbacks import callback_class
from byteps.keras.elastic import CommitState, UpdateEpochState, model_variables
from byteps.keras.optimizer import gradient_names

RunWorkers = Callable[..., Any]

BACKENDS = ["tensorflow", "torch", "jax"]
STEPS = 6


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed here: tools/setup --frameworks")
    return str(request.param)


def _model(width: int = 4, compiled: bool = False) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((width,)), keras.layers.Dense(2, use_bias=False)])
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=compiled)
    return model


def _fit(model: Any, *callbacks: Any, **options: Any) -> None:
    x = np.arange(2 * STEPS * model.input_shape[-1], dtype=np.float32).reshape(2 * STEPS, -1) / 10 + bps.rank()
    model.fit(x, x[:, :2], batch_size=2, shuffle=False, verbose=0, callbacks=list(callbacks), **options)
    # On JAX fit() may end before its last steps have: an error is raised where the result is used.
    model.get_weights()


class _Leave:
    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and bps.rank() == 1:
            os._exit(0)


def _lose_a_worker() -> None:
    bps.init()
    _fit(_model(), callback_class("Leave", _Leave)())
    raise AssertionError("rank 0 has trained on")


def _disagree() -> None:
    bps.init()
    _fit(_model(width=4 + bps.rank()))
    raise AssertionError("workers of different models have trained")


def test_a_lost_worker_ends_fit(run_workers: RunWorkers, backend: str) -> None:
    job = run_workers(_lose_a_worker, check=False, KERAS_BACKEND=backend, BYTEPS_OP_TIMEOUT="120")
    assert job.returncode != 0
    assert "has trained on" not in job.output
    said = [line for line in job.stderr.splitlines() if line.startswith("[worker 0]")]
    assert any("rank 1" in line for line in said), job.output


def test_workers_that_disagree_end_fit(run_workers: RunWorkers, backend: str) -> None:
    job = run_workers(_disagree, check=False, KERAS_BACKEND=backend, BYTEPS_OP_TIMEOUT="120")
    assert job.returncode != 0
    assert "have trained" not in job.output
    assert "the ranks disagree" in job.output and "gradient.0" in job.output, job.output


def _data(batches: int) -> tuple[Any, Any]:
    x = np.arange(8 * batches, dtype=np.float32).reshape(-1, 4) / 10
    return x, x[:, :2]


def _end_before_the_other(compiled: bool) -> None:
    """The last step of rank 0 fails, and nobody uses its results."""
    bps.init()
    _model(compiled=compiled).fit(*_data(2 - bps.rank()), batch_size=2, verbose=0)
    assert bps.rank() == 1, "rank 0 has trained on"


def _skip_uncompiled(backend: str, compiled: bool) -> None:
    if compiled and backend != "jax":
        pytest.skip("XLA compiles training steps with JAX alone")


@pytest.mark.parametrize("compiled", [False, True])
def test_the_last_step_ends_fit(run_workers: RunWorkers, backend: str, compiled: bool) -> None:
    _skip_uncompiled(backend, compiled)
    job = run_workers(_end_before_the_other, compiled, check=False, KERAS_BACKEND=backend, BYTEPS_OP_TIMEOUT="10")
    assert job.returncode != 0
    assert "has trained on" not in job.output
    said = [line for line in job.stderr.splitlines() if line.startswith("[worker 0]")]
    assert any("rank 1" in line for line in said), job.output


def _handle_the_last_step() -> None:
    bps.init()
    model = _model(compiled=True)
    if bps.rank() == 1:
        model.fit(*_data(1), batch_size=2, verbose=0)
        return
    with pytest.raises(Exception, match="rank 1"):
        model.fit(*_data(2), batch_size=2, verbose=0)


def test_a_failure_that_was_handled_leaves_the_exit_status(run_workers: RunWorkers) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed here: tools/setup --frameworks")
    job = run_workers(_handle_the_last_step, KERAS_BACKEND="jax", BYTEPS_OP_TIMEOUT="10")
    assert "has not waited for" not in job.stderr, job.output


def _train_without_a_session(compiled: bool) -> None:
    trainings: list[Callable[[Any], Any]] = [
        lambda model: model.fit(*_data(2), batch_size=2, verbose=0),
        lambda model: model.train_on_batch(*_data(1)),
    ]
    for train in trainings:
        with pytest.raises(Exception, match=r"call bps.init\(\)"):
            train(_model(compiled=compiled))
        # What was compiled in a session.
        bps.init()
        model = _model(compiled=compiled)
        train(model)
        bps.shutdown()
        with pytest.raises(Exception, match=r"call bps.init\(\)"):
            train(model)


@pytest.mark.parametrize("compiled", [False, True])
def test_without_a_session_training_is_an_error(run_alone: RunWorkers, backend: str, compiled: bool) -> None:
    _skip_uncompiled(backend, compiled)
    run_alone(_train_without_a_session, compiled, KERAS_BACKEND=backend)


class _Disturb:
    """Once, in the second epoch, rank 1 asks for another tensor under the name of the gradient: the step of rank 0,
    which sends it, fails."""

    def __init__(self, state: Any, name: str) -> None:
        super().__init__()
        self._state = state
        self._name = name
        self._left = bps.rank()

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._left == 0 or self._state.epoch != 1 or batch != 2:
            return
        self._left = 0
        push_pull(np.ones(17, np.float32), name=self._name)
        raise AssertionError("tensors of different shapes have met")


def _train(disturbed: bool) -> tuple[list[Any], list[int]]:
    """What model and optimizer are in the end, and the epochs that were begun."""
    model = _model()
    state = bps.elastic.KerasState(model, epoch=0)
    (name,) = gradient_names(model.trainable_variables, "gradient.")
    update = callback_class("Update", UpdateEpochState)(state)
    commit = callback_class("Commit", CommitState)(state, batches_per_commit=1000)
    disturb = [callback_class("Disturb", _Disturb)(state, name)] if disturbed else []
    begun: list[int] = []

    @bps.elastic.run
    def train(state: Any) -> None:
        begun.append(state.epoch)
        _fit(model, update, commit, *disturb, epochs=3, initial_epoch=state.epoch)

    train(state)
    return [np.array(variable) for variable in model_variables(model, model.optimizer)], begun


def _come_back_behind_a_failed_step() -> bool:
    bps.init()
    plain, begun = _train(disturbed=False)
    assert begun == [0]
    again, begun = _train(disturbed=True)
    assert begun == [0, 1], begun
    for one, other in zip(plain, again):
        np.testing.assert_array_equal(one, other)
    return True


def test_a_state_brings_back_what_a_failed_step_has_spoiled(run_workers: RunWorkers, backend: str) -> None:
    job = run_workers(_come_back_behind_a_failed_step, KERAS_BACKEND=backend, BYTEPS_OP_TIMEOUT="120")
    assert job.results == [True, True]
