"""Asynchronous training: what ranks get that take different numbers of steps, in functions and eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")
framework("keras")

import byteps.tensorflow as bps
from asynchronous_runs import ASYNCHRONOUS, Step, bounded, run_bounded, run_until_the_peer_dies

RunWorkers = Callable[..., Any]


def _sums(in_a_function: bool) -> list[float]:
    """Rank 0 takes 10 steps of 1, rank 1 takes 4 of 2: one that waited for the other would never end."""
    bps.init()
    rank = bps.rank()
    weight = tf.Variable(tf.fill([300, 40], 5.0 * rank))  # the servers begin with rank 0's
    optimizer = bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    optimizer.build([weight])

    def take(size: tf.Tensor) -> None:
        optimizer.apply_gradients([(tf.fill(weight.shape, -size), weight)])

    step = tf.function(take) if in_a_function else take
    seen = 0.0
    for _ in range(4 if rank else 10):
        step(tf.constant(rank + 1.0))
        low, high = float(tf.reduce_min(weight)), float(tf.reduce_max(weight))
        assert seen + rank + 1 <= low <= high <= 18
        seen = low
    bps.barrier()
    step(tf.constant(0.0))
    assert bps.push_pull(tf.ones([2]), op=bps.Sum, name="of all").numpy().tolist() == [2, 2]
    return sorted(set(weight.numpy().ravel().tolist()))


@pytest.mark.parametrize("in_a_function", [True, False])
def test_everybody_gets_all_steps(run_workers: RunWorkers, in_a_function: bool) -> None:
    job = run_workers(_sums, in_a_function, servers=2, BYTEPS_ENABLE_ASYNC="1")
    assert job.results == [[18.0]] * 2


def _step() -> Step:
    bps.init()
    weight = tf.Variable(tf.zeros([300]))
    optimizer = bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    optimizer.build([weight])

    @tf.function
    def take(size: tf.Tensor) -> tf.Tensor:
        optimizer.apply_gradients([(tf.fill(weight.shape, -size), weight)])
        return tf.reduce_min(weight)

    return lambda size: float(take(tf.constant(float(size))))


def _bounded() -> None:
    run_bounded(_step())


def _peer_dies() -> None:
    run_until_the_peer_dies(_step(), tf.errors.UnavailableError)


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_holds(run_workers: RunWorkers, bound: int) -> None:
    run_workers(_bounded, **bounded(bound))


def test_a_death_is_an_error_of_tensorflow(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False, **ASYNCHRONOUS)
    assert job.returncode != 0 and "heard: " in job.output, job.output


def _refused() -> None:
    bps.init()
    for options, text in (
        ({"op": bps.Max}, "op=Max"),
        ({"compression": bps.Compression.fp16}, "compression"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"process_set": bps.add_process_set([bps.rank()])}, "process_set"),
    ):
        with pytest.raises(ValueError, match=f"{text}.* does not go with asynchronous training"):
            bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), **options)
    with pytest.raises(bps.UnimplementedError, match="has no asynchronous training"):
        bps.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(bps.UnimplementedError, match="has no asynchronous training"):
        bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))


def test_what_does_not_go_with_it(run_workers: RunWorkers) -> None:
    run_workers(_refused, BYTEPS_ENABLE_ASYNC="1")
