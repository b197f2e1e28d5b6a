"""Where TensorFlow runs operations besides eager code and a tf.function: pipelines of tf.data, functions of a saved
model, sessions, threads of the program, functions that are run eagerly, gradients that a program defines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes


def _pipelines() -> None:
    bps.init()

    def reduced(number: tf.Tensor) -> tf.Tensor:
        return bps.push_pull(tf.cast(number, tf.float32) * (bps.rank() + 1), op=bps.Sum, name="element")

    found = [float(element) for element in tf.data.Dataset.range(20).map(reduced)]
    assert found == [3.0 * number for number in range(20)]


def _saved_model() -> None:
    """It keeps names, and needs byteps.tensorflow where it is loaded."""
    bps.init()

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def total(self, x: tf.Tensor) -> tf.Tensor:
            return bps.push_pull(x, op=bps.Sum, name="saved")

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Module(), folder)
        loaded = tf.saved_model.load(folder)
    np.testing.assert_array_equal(loaded.total(tf.fill([5], float(bps.rank()))), np.ones(5))
    with pytest.raises(tf.errors.FailedPreconditionError, match="disagree"):
        loaded.total(tf.zeros([2 + bps.rank()]))
    np.testing.assert_array_equal(loaded.total(tf.ones([3])), [2, 2, 2])


def _sessions() -> None:
    bps.init()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        total = bps.push_pull(x, op=bps.Sum)
        with tf.compat.v1.Session() as session:
            for _ in range(3):
                np.testing.assert_array_equal(session.run(total, {x: np.full(3, bps.rank())}), [1, 1, 1])
            with pytest.raises(tf.errors.FailedPreconditionError, match="disagree"):
                session.run(total, {x: np.ones(3 + bps.rank())})
            np.testing.assert_array_equal(session.run(total, {x: np.ones(2)}), [2, 2])


def _threads() -> None:
    """Of the program, each with a name of its own; the ranks start them in different orders."""
    bps.init()
    rank = bps.rank()

    def work(number: int) -> list[float]:
        return [
            float(bps.push_pull(tf.constant(float(number + rank + turn)), op=bps.Sum, name=f"thread {number}"))
            for turn in range(30)
        ]

    numbers = list(range(8)) if rank == 0 else list(reversed(range(8)))
    with ThreadPoolExecutor(len(numbers)) as threads:
        for number, found in zip(numbers, threads.map(work, numbers)):
            assert found == [2.0 * (number + turn) + 1 for turn in range(30)]


def _functions_that_run_eagerly() -> None:
    bps.init()

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return bps.push_pull(x), bps.grouped_push_pull([x, 2 * x], op=bps.Sum)

    tf.config.run_functions_eagerly(True)
    try:
        mean, totals = step(tf.constant([1.0, 3.0]) * (bps.rank() + 1))
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(mean, [1.5, 4.5])
    np.testing.assert_array_equal(totals, [[3, 9], [6, 18]])


def _gradients_of_the_program() -> None:
    """push_pull in both directions of a tf.custom_gradient."""
    bps.init()
    own = float(bps.rank() + 1)

    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(of_result: tf.Tensor) -> tf.Tensor:
            return 10 * bps.push_pull(of_result, op=bps.Sum, name="back")

        return 2 * bps.push_pull(x, op=bps.Sum, name="forth"), gradient

    def step(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = doubled(x)
            loss = own * tf.reduce_sum(result)
        return result, tape.gradient(loss, x)

    for run in (step, tf.function(step)):
        result, gradient = run(tf.fill([2], own))
        np.testing.assert_array_equal(result, [6, 6])
        np.testing.assert_array_equal(gradient, [30, 30])


BODIES = [
    _pipelines,
    _saved_model,
    _sessions,
    _threads,
    _functions_that_run_eagerly,
    _gradients_of_the_program,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
