"""Loops of a tf.function whose iterations TensorFlow would run at the same time, in an order of each rank's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes

RunWorkers = Callable[..., Any]

COUNT = 6


class _Reversed:
    """What an iteration computes of its number. On rank 1 the first iteration waits for the second one, so that their
    operations would begin the other way round: until the second one is here, or for as long as it may take to begin."""

    def __init__(self) -> None:
        self._second = threading.Event()

    def _wait(self, number: np.ndarray) -> np.ndarray:
        if bps.rank() == 1:
            if number == 0:
                self._second.wait(1)
            else:
                self._second.set()
        return number.astype(np.float32)

    def __call__(self, number: tf.Tensor) -> tf.Tensor:
        """(rank + 1) * (10 ** number), of which sums over iterations and ranks tell what they are made of."""
        # Without a state, for else TensorFlow would run one after another.
        own = tf.ensure_shape(tf.numpy_function(self._wait, [number], tf.float32, stateful=False), [])
        return tf.cast(bps.rank() + 1, tf.float32) * tf.pow(10.0, own)


def _expected(numbers: Any = range(COUNT)) -> list[float]:
    """The sums of both ranks, by iteration."""
    return [3 * 10.0**number for number in numbers]


def _init() -> None:
    # One thread could not run two iterations at once.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    bps.init()


def _of_autograph() -> None:
    _init()
    computed = _Reversed()

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        sums = tf.TensorArray(tf.float32, count)
        for number in tf.range(count):
            sums = sums.write(number, bps.push_pull(computed(number), op=bps.Sum, name="of a for"))
        return sums.stack()

    np.testing.assert_allclose(step(tf.constant(COUNT)), _expected())


class _LateIteration:
    """On rank 1 iteration 0 begins when iteration 1 has its result, and on rank 0 one after another: no operation is in
    flight twice, and nothing but the sums tells that the ranks' iterations do not meet."""

    def __init__(self) -> None:
        self._met = threading.Event()

    def _wait(self, number: np.ndarray) -> np.ndarray:
        if bps.rank() == 1 and number == 0:
            self._met.wait(1)
        return number

    def _tell(self, number: np.ndarray, result: np.ndarray) -> np.ndarray:
        if number == 1:
            self._met.set()
        return result

    def sums(self, reduced: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Of two iterations."""

        @tf.function
        def step(count: tf.Tensor) -> tf.Tensor:
            sums = tf.TensorArray(tf.int32, count, element_shape=[])
            for number in tf.range(count):
                tf.autograph.experimental.set_loop_options(parallel_iterations=bps.rank() + 1)
                own = tf.ensure_shape(tf.numpy_function(self._wait, [number], tf.int32, stateful=False), [])
                result = tf.numpy_function(self._tell, [number, reduced(own)], tf.int32, stateful=False)
                sums = sums.write(number, result)
            return sums.stack()

        return step(tf.constant(2))


def _of_ranks_of_different_speed() -> None:
    _init()
    sums = _LateIteration().sums(lambda number: bps.push_pull(number, op=bps.Sum, name="met"))
    np.testing.assert_array_equal(sums, [0, 2])


def _of_while_loop() -> None:
    _init()
    computed = _Reversed()

    def body(number: tf.Tensor, sums: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        return number + 1, sums.write(number, bps.push_pull(computed(number), op=bps.Sum))

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        start = (tf.constant(0), tf.TensorArray(tf.float32, count))
        return tf.while_loop(lambda number, _: number < count, body, start)[1].stack()

    np.testing.assert_allclose(step(tf.constant(COUNT)), _expected())


def _of_map_fn() -> None:
    _init()
    computed = _Reversed()

    @tf.function
    def step(numbers: tf.Tensor) -> tf.Tensor:
        def body(number: tf.Tensor) -> tf.Tensor:
            return bps.allreduce(computed(number), op=bps.Sum)

        return tf.map_fn(body, numbers, fn_output_signature=tf.float32)

    np.testing.assert_allclose(step(tf.range(COUNT)), _expected())


def _of_vectorized_map() -> None:
    """TensorFlow makes a loop of the operations that it cannot make one of."""
    _init()
    computed = _Reversed()

    @tf.function
    def step(numbers: tf.Tensor) -> tf.Tensor:
        return tf.vectorized_map(lambda number: bps.push_pull(computed(number), op=bps.Sum), numbers)

    np.testing.assert_allclose(step(tf.range(COUNT)), _expected())


def _of_other_operations() -> None:
    _init()
    computed = _Reversed()

    @tf.function
    def step(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        roots = tf.TensorArray(tf.float32, count)
        rows = tf.TensorArray(tf.float32, count, element_shape=[2])
        for number in tf.range(count):
            own = computed(number)
            roots = roots.write(number, bps.broadcast(own, 0))
            rows = rows.write(number, tf.ensure_shape(bps.allgather(own[None]), [2]))
        return roots.stack(), rows.stack()

    roots, rows = step(tf.constant(COUNT))
    np.testing.assert_allclose(roots, [10.0**number for number in range(COUNT)])
    np.testing.assert_allclose(rows, [[10.0**number, 2 * 10.0**number] for number in range(COUNT)])


def _in_a_branch() -> None:
    """Of every second iteration, as gradients that are accumulated."""
    _init()
    computed = _Reversed()

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        sums = tf.TensorArray(tf.float32, count)
        for number in tf.range(count):
            own = computed(number // 2)
            if number % 2 == 1:
                own = bps.push_pull(own, op=bps.Sum, name="of a branch")
            sums = sums.write(number, own)
        return sums.stack()

    np.testing.assert_allclose(step(tf.constant(2 * COUNT))[1::2], _expected())


def _in_an_inner_loop() -> None:
    _init()
    computed = _Reversed()

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        sums = tf.TensorArray(tf.float32, 2 * count)
        for outer in tf.range(count):
            for inner in tf.range(2):
                number = 2 * outer + inner
                sums = sums.write(number, bps.push_pull(computed(number), op=bps.Sum, name="of an inner loop"))
        return sums.stack()

    np.testing.assert_allclose(step(tf.constant(COUNT // 2)), _expected())


def _in_a_function() -> None:
    """Of another tf.function, which the loop traces."""
    _init()
    computed = _Reversed()

    @tf.function
    def reduced(number: tf.Tensor) -> tf.Tensor:
        return bps.push_pull(computed(number), op=bps.Sum)

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        sums = tf.TensorArray(tf.float32, count)
        for number in tf.range(count):
            sums = sums.write(number, reduced(number))
        return sums.stack()

    np.testing.assert_allclose(step(tf.constant(COUNT)), _expected())


def _gradients() -> None:
    """Of a loop: those of the last iteration are the first to be sent back."""
    _init()
    computed = _Reversed()
    x = tf.constant(1.0)

    @tf.custom_gradient
    def late_backwards(value: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tf.identity(value), lambda gradient: (gradient * computed(COUNT - 1 - number), None)

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            total = tf.constant(0.0)
            for number in tf.range(count):
                weight = tf.cast(number + 1, tf.float32)
                total += weight * late_backwards(bps.push_pull(x, op=bps.Sum), number)
        return tape.gradient(total, x)

    # The gradient of iteration n is (n + 1) * (rank + 1) * 10 ** (COUNT - 1 - n) before it is summed.
    expected = sum(3 * (n + 1) * 10.0 ** (COUNT - 1 - n) for n in range(COUNT))
    np.testing.assert_allclose(step(tf.constant(COUNT)), expected)


def _unused_results() -> None:
    """What a loop sends is sent by all ranks, whether its result is used or not."""
    _init()

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for number in tf.range(count):
            result = bps.push_pull(tf.cast(number, tf.float32), op=bps.Sum, name="unused on rank 1")
            if bps.rank() == 0:
                total += result
        return total

    assert float(step(tf.constant(COUNT))) == (0 if bps.rank() else COUNT * (COUNT - 1))


BODIES = [
    _of_autograph,
    _of_ranks_of_different_speed,
    _of_while_loop,
    _of_map_fn,
    _of_vectorized_map,
    _of_other_operations,
    _in_a_branch,
    _in_an_inner_loop,
    _in_a_function,
    _gradients,
    _unused_results,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _traced_before_the_loop(kind: str) -> str:
    _init()

    @tf.function
    def reduced(number: tf.Tensor) -> tf.Tensor:
        if kind == "push_pull":
            return bps.push_pull(number, op=bps.Sum, name="met")
        return tf.reshape(bps.reducescatter(tf.stack([number, number]), op=bps.Sum, name="met"), [])

    reduced.get_concrete_function(tf.TensorSpec([], tf.int32))
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        _LateIteration().sums(reduced)
    bps.barrier("the end", timeout=60)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["push_pull", "reducescatter"])
def test_iterations_in_another_order_are_an_error(run_workers: RunWorkers, kind: str) -> None:
    """Where they are not ordered: what the loop calls was traced before it. All ranks hear so."""
    job = run_workers(_traced_before_the_loop, kind)
    for rank, message in enumerate(job.results):
        assert '"met"' in message and "rank 1" in message, message
        assert f"Here it is iteration {rank + 1} of a loop" in message, message
        assert "set_loop_options(parallel_iterations=1)" in message, message


def _summing_loop() -> Callable[[tf.Tensor], tf.Tensor]:
    """Of as many iterations as it is told."""

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0)
        for number in tf.range(count):
            total += bps.push_pull(number, op=bps.Sum, name="met")
        return total

    return step


def _numbers_of_iterations_that_differ() -> str:
    _init()
    step = _summing_loop()
    if bps.rank() == 0:
        assert int(step(tf.constant(3))) == 6
        message = ""
    else:
        with pytest.raises(tf.errors.DeadlineExceededError) as caught:
            step(tf.constant(5))
        message = str(caught.value)
    bps.barrier("the end", timeout=60)
    return message


def _a_loop_that_one_rank_runs_again() -> str:
    _init()
    step = _summing_loop()
    if bps.rank() == 0:
        assert int(step(tf.constant(3))) == 6
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        step(tf.constant(3 if bps.rank() == 0 else 5))
    # One round each was used up: what comes later meets what belongs to it.
    assert int(step(tf.constant(3))) == 6
    return str(caught.value)


def test_a_loop_that_runs_again_meets_no_later_iteration(run_workers: RunWorkers) -> None:
    job = run_workers(_a_loop_that_one_rank_runs_again)
    assert "Here it is iteration 1 of a loop" in job.results[0], job.results[0]
    assert "Here it is iteration 4 of a loop" in job.results[1], job.results[1]


def test_a_rank_with_more_iterations_hears_who_is_missing(run_workers: RunWorkers) -> None:
    message = run_workers(_numbers_of_iterations_that_differ, BYTEPS_OP_TIMEOUT="4").results[1]
    assert '"met"' in message and "rank 0" in message, message
