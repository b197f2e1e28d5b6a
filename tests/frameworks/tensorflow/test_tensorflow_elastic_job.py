"""byteps.tensorflow.elastic with members that stay: a failed operation takes training back to the last commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from byteps.errors import HostsUpdatedInterrupt
from jobs import Outcomes

RunWorkers = Callable[..., Any]


def _train(fail_at: int | None, in_graph: bool) -> tuple[np.ndarray, list[int], int]:
    """The weights, the batches that were begun, and how often the session was reset."""
    bps.init()
    weight = tf.Variable([1.0 + bps.rank(), 2.0])
    state = bps.elastic.TensorFlowState([weight], batch=0)
    begun: list[int] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(1)])

    def step(x: tf.Tensor) -> None:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight * x)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    step = tf.function(step) if in_graph else step
    disagree = tf.function(bps.allreduce) if in_graph else bps.allreduce

    @bps.elastic.run
    def train(state: Any) -> str:
        while state.batch < 6:
            begun.append(state.batch)
            step(tf.constant([1.0, 2.0]) * (1.0 + state.batch + bps.rank()))
            if state.batch == fail_at and not resets:
                disagree(tf.ones([1 + bps.rank()]), name="disagreement")
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        return "done"

    assert train(state) == "done"
    return weight.numpy(), begun, len(resets)


def _back_to_the_commit() -> None:
    for in_graph in (False, True):
        weights, begun, resets = _train(None, in_graph)
        assert begun == list(range(6)) and resets == 0
        again, begun, resets = _train(3, in_graph)
        assert begun == [0, 1, 2, 3, 2, 3, 4, 5] and resets == 1
        np.testing.assert_array_equal(weights, again)


def _variables_of_a_generator() -> None:
    bps.init()
    variables = [tf.Variable([1.0 + bps.rank()]), tf.Variable([5.0 - bps.rank()])]
    state = bps.elastic.TensorFlowState(variable for variable in variables)
    for variable in variables:
        variable.assign_add([1.0])
    state.save()
    for variable in variables:
        variable.assign([0.0])
    state.restore()
    assert [float(variable[0]) for variable in variables] == [2.0 + bps.rank(), 6.0 - bps.rank()]
    state.sync(root_rank=1)
    assert [float(variable[0]) for variable in variables] == [3.0, 5.0], "those of rank 1 on both"


def _updates_interrupt_all_ranks() -> None:
    bps.init()
    state = bps.elastic.ObjectState(seen=0)
    calls: list[int] = []

    @bps.elastic.run
    def train(state: Any) -> int:
        calls.append(state.seen)
        state.seen += 1
        if len(calls) == 1 and bps.rank() == 1:
            state.on_hosts_updated(skip_sync=True)
        state.commit()
        return state.seen

    assert train(state) == 2 and calls == [0, 1], "on both ranks, without going back"
    if bps.rank() == 0:
        state.on_hosts_updated()
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def _other_errors_go_through() -> None:
    bps.init()
    state = bps.elastic.ObjectState(value=1)
    attempts: list[int] = []

    @bps.elastic.run
    def of_tensorflow(state: Any) -> None:
        attempts.append(1)
        tf.reshape(tf.ones([3]), [2])

    with pytest.raises(tf.errors.InvalidArgumentError, match="eshape"):
        of_tensorflow(state)
    assert attempts == [1]

    @bps.elastic.run
    def always(state: Any) -> None:
        attempts.append(1)
        bps.allreduce(tf.ones([1 + bps.rank()]), name="odd")

    with pytest.raises(tf.errors.FailedPreconditionError, match="odd"):
        always(state)
    assert len(attempts) == 11


def _session_of_tensorflow_1() -> None:
    """As in eager execution: the variables of a graph come back to the commit, and are those of the root."""
    bps.init()
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="session="):
            bps.elastic.TensorFlowState()
        weight = tf.compat.v1.get_variable("weight", initializer=[1.0 + bps.rank(), 2.0], use_resource=True)
        old = tf.compat.v1.get_variable("old", initializer=[3.0 + bps.rank()], use_resource=False)
        summed = bps.allreduce(weight, op=bps.Sum, name="session.sum")
        step = tf.group(tf.compat.v1.assign_add(weight, summed), tf.compat.v1.assign_add(old, [1.0]))
        size = tf.compat.v1.placeholder(tf.int32)
        disagree = bps.allreduce(tf.ones([size]), name="session.disagreement")
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            state = bps.elastic.TensorFlowState(session=session, batch=0)
            begun: list[int] = []

            @bps.elastic.run
            def train(state: Any) -> list[Any]:
                while state.batch < 3:
                    begun.append(state.batch)
                    session.run(step)
                    if len(begun) == 2:
                        session.run(disagree, {size: 1 + bps.rank()})
                    state.batch += 1
                    state.commit()
                return session.run([weight, old])

            # With rank 0's values at first; each step makes the weight three times as large.
            new, plain = train(state)
            assert begun == [0, 1, 1, 2]
            np.testing.assert_array_equal(new, [27.0, 54.0])
            np.testing.assert_array_equal(plain, [6.0])


BODIES = [
    _back_to_the_commit,
    _session_of_tensorflow_1,
    _variables_of_a_generator,
    _updates_interrupt_all_ranks,
    _other_errors_go_through,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _lose_a_member() -> str:
    bps.init()

    @bps.elastic.run
    def train(state: Any) -> None:
        if bps.rank() == 1:
            import os

            os._exit(0)
        bps.allreduce(tf.ones([3]), name="lonely")

    with pytest.raises(tf.errors.UnavailableError) as raised:
        train(bps.elastic.ObjectState(value=1))
    return str(raised.value)


def test_a_lost_member_ends_training(run_workers: RunWorkers) -> None:
    result = run_workers(_lose_a_member, check=False).results[0]
    assert result is not None and "rank 1" in result
