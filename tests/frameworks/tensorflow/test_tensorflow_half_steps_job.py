"""Steps of a tf.function that end half-way, and programs that go on behind the error: what follows is right again, and
is never made of values of different steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes, clean_environment, launcher_command, run_job

STEPS = 5
_LARGE = 100_000


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of two workers that has run all bodies. Ranks that wait for each other in vain fail soon."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="20")
    folder: Path = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(2, 1), 2, BODIES, (), environment, check=False))


def _init() -> None:
    # One thread could not wait in one operation while another is sent.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    bps.init()


class _Model:
    """Two variables. Their gradients are 1 and 10 times the number of the step; the second is not computed before the
    first has been reduced, and not at all in a step that `fails`."""

    def __init__(self, name: str, sparse: bool = False, op: bps.ReduceOp = bps.Sum) -> None:
        self.variables = [tf.Variable(tf.zeros([2, 2]), name=f"{name}_{each}") for each in ("first", "second")]
        self.sparse = sparse
        self.op = op
        self.reduced = threading.Event()
        self.fails = False

    def _compute(self, gradient: np.ndarray) -> np.ndarray:
        assert self.reduced.wait(60)
        if self.fails:
            raise RuntimeError("no data")
        return gradient

    def _tell(self, gradient: np.ndarray) -> np.ndarray:
        self.reduced.set()
        return gradient

    def gradients(self, number: tf.Tensor) -> list[tf.Tensor]:
        """Reduced."""

        @tf.custom_gradient
        def late(value: tf.Tensor) -> Any:
            def back(gradient: tf.Tensor) -> tf.Tensor:
                computed = tf.numpy_function(self._compute, [gradient], tf.float32, stateful=False)
                return tf.ensure_shape(computed, gradient.shape)

            return tf.identity(value), back

        with bps.DistributedGradientTape(tf.GradientTape(), op=self.op) as tape:
            first, second = self.variables
            used = tf.gather(second, [0, 1]) if self.sparse else tf.identity(second)
            loss = number * (tf.reduce_sum(first) + 10 * tf.reduce_sum(late(used)))
        first, second = tape.gradient(loss, self.variables)
        return [tf.numpy_function(self._tell, [first], tf.float32), tf.convert_to_tensor(second)]


def _check(found: list[tf.Tensor], number: int, op: bps.ReduceOp = bps.Sum) -> None:
    """Of equal gradients on both ranks, which Adasum takes for one."""
    for factor, each in zip((1, 10), found):
        np.testing.assert_allclose(each, np.full((2, 2), (2.0 if op is bps.Sum else 1.0) * factor * number))


def _train(name: str, sparse: bool = False, op: bps.ReduceOp = bps.Sum) -> None:
    """Rank 1's second gradient fails in steps 1 and 3, when its first one has been reduced."""
    _init()
    model = _Model(name, sparse, op)
    step = tf.function(model.gradients)
    ends = []
    for number in range(STEPS):
        model.reduced.clear()
        model.fails = bps.rank() == 1 and number in (1, 3)
        try:
            found = step(tf.constant(float(number + 1)))
        except tf.errors.OpError as error:
            ends.append(str(error))
        else:
            _check(found, number + 1, op)
            ends.append("right")
    assert [ends[number] for number in (0, 2, 4)] == ["right"] * 3, ends
    for number in (1, 3):
        assert ("no data" if bps.rank() == 1 else "ended before this operation") in ends[number], ends


def _of_one_rank() -> None:
    _train("one")


def _of_one_rank_with_slices() -> None:
    _train("slices", sparse=True)


def _of_one_rank_from_worker_to_worker() -> None:
    _init()
    _train("adasum", op=bps.Adasum)


def _of_all_ranks() -> None:
    """The ranks disagree about one tensor of a group, when rank 0 has sent the others and rank 1 has not."""
    _init()
    released = threading.Event()

    def wait(value: np.ndarray) -> np.ndarray:
        assert released.wait(60)
        return value

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2])])
    def step(differs: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        late = tf.ensure_shape(tf.numpy_function(wait, [value], tf.float32, stateful=False), [2])
        return bps.grouped_push_pull([differs, late], op=bps.Sum, name="group")

    def release() -> None:
        bps.barrier("rank 0 has heard", timeout=60)
        released.set()

    releasing = threading.Thread(target=release)
    if bps.rank() == 1:
        releasing.start()
    else:
        released.set()
    # Rank 1 gives the other one up, which rank 0 may hear of first.
    with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.AbortedError), match="the ranks disagree"):
        step(tf.ones([2 + bps.rank()]), tf.ones([2]))
    if bps.rank() == 1:
        releasing.join()
    else:
        bps.barrier("rank 0 has heard", timeout=60)
    for number in range(2, STEPS):
        value = tf.fill([2], float(number))
        for each in step(value, value):
            np.testing.assert_allclose(each, [2.0 * number] * 2)


def _begins_with_what_was_left_out() -> None:
    """Its round is being given up when it begins, and what is large is not given up in no time."""
    _init()
    for known in (True, False):
        group = _Group(tf.TensorSpec([_LARGE if known else None]), f"left out, shape known: {known}")
        for number in range(1, STEPS + 1):
            group.fails = bps.rank() == 1 and number in (1, 3)
            group.first = number % 2
            try:
                found = group(float(number))
            except tf.errors.OpError as error:
                assert number in (1, 3), error
            else:
                assert number not in (1, 3)
                for each in found:
                    np.testing.assert_allclose(each, np.full(_LARGE, 2.0 * number))


class _Group:
    """Two tensors, of which the one that is not the `first` begins when that one has been reduced, or fails."""

    def __init__(self, kind: tf.TensorSpec, name: str) -> None:
        self.first = 0
        self.fails = False
        self._reduced = threading.Event()
        self._step = tf.function(lambda value: self._run(value, name), input_signature=[kind])

    def _wait(self, index: np.ndarray, value: np.ndarray) -> np.ndarray:
        if index != self.first:
            assert self._reduced.wait(60)
            if self.fails:
                raise RuntimeError("no data")
        return value

    def _tell(self, index: np.ndarray, value: np.ndarray) -> np.ndarray:
        if index == self.first:
            self._reduced.set()
        return value

    def _run(self, value: tf.Tensor, name: str) -> list[tf.Tensor]:
        given = [tf.numpy_function(self._wait, [index, value], tf.float32, stateful=False) for index in range(2)]
        sums = bps.grouped_push_pull([tf.ensure_shape(each, value.shape) for each in given], op=bps.Sum, name=name)
        return [
            tf.numpy_function(self._tell, [index, each], tf.float32, stateful=False) for index, each in enumerate(sums)
        ]

    def __call__(self, value: float) -> list[tf.Tensor]:
        self._reduced.clear()
        return self._step(tf.fill([_LARGE], value))


def _fetched_in_turns() -> None:
    """A graph of TensorFlow 1 of which each run takes one operation of a group."""
    _init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.compat.v1.placeholder(tf.float32, [_LARGE])
        sums = bps.grouped_push_pull([value, 10 * value], op=bps.Sum, name="in turns")
        for number in range(1, 9):
            index = number % 2
            found = session.run(sums[index], {value: np.full(_LARGE, number)})
            np.testing.assert_allclose(found, np.full(_LARGE, 2.0 * number * 10**index))


def _again_and_again_in_a_step() -> None:
    """The operations of a group run several times in a step, one of them ahead of the other."""
    _init()

    @tf.function
    def step(small: tf.Tensor, large: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for _ in range(12):
            small, large = bps.grouped_push_pull([small, large], op=bps.Average, name="again")
            small, large = small + 1, large + 1
        return small, large

    @tf.function
    def mapped(values: tf.Tensor) -> list[tf.Tensor]:
        return tf.vectorized_map(lambda x: bps.grouped_push_pull([x, tf.tile(x, [_LARGE])], op=bps.Sum), values)

    for _ in range(3):
        small, large = step(tf.ones([1]), tf.ones([_LARGE]))
        assert float(small[0]) == 13.0
        np.testing.assert_allclose(large, np.full(_LARGE, 13.0))
        values = tf.reshape(tf.range(20.0), [20, 1])
        found = mapped(values)
        np.testing.assert_allclose(found[0], 2 * values)
        np.testing.assert_allclose(found[1], np.broadcast_to(2 * values, [20, _LARGE]))


def _behind_a_join() -> None:
    """A rank that joins takes part in what it had left out: it is not given up again."""
    _init()
    model = _Model("join")
    step = tf.function(model.gradients)
    model.fails = bps.rank() == 1
    if bps.rank() == 1:
        with pytest.raises(tf.errors.OpError, match="no data"):
            step(tf.constant(1.0))
    else:
        first, second = step(tf.constant(1.0))
        np.testing.assert_allclose(first, np.full((2, 2), 2.0))
        np.testing.assert_allclose(second, np.full((2, 2), 10.0), err_msg="with zeros of rank 1")
    bps.join()
    model.fails = False
    for number in range(2, STEPS):
        model.reduced.clear()
        _check(step(tf.constant(float(number))), number)


def _several_graphs() -> None:
    """Of one function, which is traced again: the second one has no use for some of the gradients."""
    _init()
    model = _Model("graphs")

    @tf.function
    def step(number: tf.Tensor, whole: bool) -> list[tf.Tensor]:
        first, second = model.gradients(number)
        return [first, second] if whole else [first]

    for number, whole in enumerate([True, False, False, True, False, True], start=1):
        model.reduced.clear()
        _check(step(tf.constant(float(number)), whole), number)


def _in_another_session() -> None:
    """What was left out in one session is over with it."""
    _init()
    model = _Model("session")
    step = tf.function(model.gradients)
    model.fails = bps.rank() == 1
    with pytest.raises(tf.errors.OpError):
        if bps.rank() == 1:
            try:
                step(tf.constant(1.0))
            finally:
                bps.shutdown()  # which rank 0 hears
        else:
            step(tf.constant(1.0))
    with contextlib.suppress(bps.UnavailableError):  # rank 0's session has ended with rank 1
        bps.shutdown()
    bps.init()
    model.fails = False
    for number in range(2, STEPS):
        model.reduced.clear()
        _check(step(tf.constant(float(number))), number)


BODIES = [
    _of_one_rank,
    _of_one_rank_with_slices,
    _of_one_rank_from_worker_to_worker,
    _of_all_ranks,
    _begins_with_what_was_left_out,
    _fetched_in_turns,
    _again_and_again_in_a_step,
    _behind_a_join,
    _several_graphs,
    _in_another_session,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
