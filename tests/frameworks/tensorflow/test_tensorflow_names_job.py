"""Names that a graph gives: operations that are in flight at once have different ones, the same on all ranks.

Rank 1 is late in each step, so that all operations of rank 0 that can be in flight at once are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes, clean_environment, launcher_command, run_job


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of two workers that has run all bodies. Ranks that wait for names of their own fail soon."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="20")
    folder: Path = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(2, 1), 2, BODIES, (), environment, check=False))


def _called_late(step: Callable[..., Any], *arguments: Any) -> Any:
    """step(*arguments), which rank 1 begins late: it is traced before on both ranks."""
    traced = step.get_concrete_function(*arguments)
    bps.barrier("traced", timeout=60)
    time.sleep(0.3 * bps.rank())
    return traced(*arguments)


def _names_in(step: Any, *arguments: Any) -> list[str]:
    """The names that a tf.function sends, those of branches and loops included."""
    definition = step.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return sorted({node.attr["tensor_name"].s.decode() for node in nodes if node.op.startswith("Byteps")})


def _two_gradients_through_one_operation() -> None:
    """As in a GAN, whose two losses depend on what one collective has made."""
    bps.init()
    rank = bps.rank()
    operations: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
        "push_pull": lambda x: bps.push_pull(x, op=bps.Sum, name="p"),
        "unnamed": lambda x: bps.push_pull(x, op=bps.Sum),
        "broadcast": lambda x: bps.broadcast(x, 1, name="b"),
        "reducescatter": lambda x: bps.reducescatter(x, op=bps.Sum, name="r"),
        "alltoall": lambda x: bps.alltoall(x, name="a"),
    }
    x = tf.ones([2, 2])

    def of_two_tapes(operation: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            first.watch(x)
            second.watch(x)
            result = operation(x)
            losses = tf.reduce_sum(result), 10 * tf.reduce_sum(result)
        return first.gradient(losses[0], x), second.gradient(losses[1], x)

    def of_one(operation: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            result = operation(x)
            losses = tf.reduce_sum(result), 10 * tf.reduce_sum(result)
        return tape.gradient(losses[0], x), tape.gradient(losses[1], x)

    for what, operation in operations.items():
        expected = {"alltoall": 1.0, "broadcast": 2.0 * rank}.get(what, 2.0)
        for gradients in (of_two_tapes, of_one):
            step = tf.function(lambda x, given=operation, of=gradients: of(given, x))
            one, ten = _called_late(step, x)
            np.testing.assert_array_equal(one, np.full([2, 2], expected), err_msg=what)
            np.testing.assert_array_equal(ten, np.full([2, 2], 10 * expected), err_msg=what)


def _layers_that_one_rank_has_made_more_of() -> None:
    """Keras numbers layers without a name by how many the process has made."""
    bps.init()
    if bps.rank() == 0:
        bps.SyncBatchNormalization()
    layers = [bps.SyncBatchNormalization() for _ in range(2)]
    x = tf.reshape(tf.range(8.0) + 8 * bps.rank(), [4, 2])

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            # The layers do not wait for each other.
            results = [layer(scale * x, training=True) for scale, layer in enumerate(layers, 1)]
            loss = tf.add_n([tf.reduce_sum(result**3) for result in results])
        return tape.gradient(loss, x), results[1]

    names = _names_in(step, x)
    assert len(names) == 8 and not any("normalization_" in name for name in names), names
    assert bps.allgather_object(names) == [names, names]
    whole = np.arange(16.0).reshape(8, 2)
    expected = (whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-3)
    own = slice(4 * bps.rank(), 4 * bps.rank() + 4)
    np.testing.assert_allclose(_called_late(step, x)[1], expected[own], rtol=1e-2)


def _two_optimizers_in_branches() -> None:
    """Gradients that are accumulated are reduced in a branch: of each optimizer's own, under names of one kind."""
    bps.init()
    own = float(bps.rank() + 1)
    weights = [tf.Variable([1.0, 2.0], name="dense/kernel") for _ in range(2)]

    def reduced(scale: float, weight: tf.Variable) -> tf.Tensor:
        with bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum) as tape:
            loss = tf.reduce_sum(scale * own * weight)
        return tape.gradient(loss, weight)

    @tf.function
    def step(count: tf.Tensor) -> list[tf.Tensor]:
        def branches(scale: float, weight: tf.Variable) -> tf.Tensor:
            return tf.cond(count > 0, lambda: reduced(scale, weight), lambda: tf.zeros([2]))

        return [branches(scale, weight) for scale, weight in zip((1.0, 10.0), weights)]

    assert _names_in(step, tf.constant(0)) == ["gradient.0.dense/kernel", "gradient.0.dense/kernel.2"]
    one, ten = _called_late(step, tf.constant(1))
    np.testing.assert_array_equal(one, [3, 3])
    np.testing.assert_array_equal(ten, [30, 30])
    np.testing.assert_array_equal(step(tf.constant(0)), np.zeros([2, 2]))
    # Another trace counts from the beginning.
    assert _names_in(step, tf.TensorSpec([], tf.float32)) == _names_in(step, tf.constant(0))


def _branches_that_reduce_different_tensors() -> None:
    """Without names they have different ones, by which ranks that take different branches would not meet."""
    bps.init()

    def names(
        first: Callable[[tf.Tensor], tf.Tensor], second: Callable[[tf.Tensor], tf.Tensor], name: Any
    ) -> list[str]:
        @tf.function
        def step(x: tf.Tensor, way: tf.Tensor) -> tf.Tensor:
            return tf.cond(way, lambda: bps.push_pull(first(x), name=name), lambda: bps.push_pull(second(x), name=name))

        return _names_in(step, tf.ones([2]), tf.constant(True))

    assert len(names(lambda x: x, lambda x: 2 * x, None)) == 2
    assert names(lambda x: x, lambda x: 2 * x, "given") == ["given"]
    assert len(names(lambda x: x, lambda x: x, None)) == 1


def _ranks_in_different_branches_meet() -> None:
    """One branch runs, so that both have the same names; gradients through them, too."""
    bps.init()
    rank = bps.rank()
    x = tf.constant([1.0, 2.0])

    @tf.function
    def step(x: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(x)

            def named(factor: float) -> tf.Tensor:
                inner = tf.cond(
                    first,
                    lambda: bps.push_pull(factor * x, op=bps.Sum, name="met"),
                    lambda: bps.push_pull(-factor * x, op=bps.Sum, name="met"),
                )
                return inner + 0.0

            result = tf.cond(first, lambda: named(1.0), lambda: named(3.0))
            loss = tf.reduce_sum(result)

        def unnamed(factor: float) -> tf.Tensor:
            with bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum) as own:
                own.watch(x)
                loss = factor * tf.reduce_sum(x)
            return own.gradient(loss, x)

        given = tf.switch_case(tf.cast(first, tf.int32), [lambda: unnamed(1.0), lambda: unnamed(2.0)])
        return result, tape.gradient(loss, x), given

    # Rank 0 sends x, rank 1 -3 x.
    result, gradient, given = _called_late(step, x, tf.constant(rank == 0))
    np.testing.assert_array_equal(result, [-2, -4])
    np.testing.assert_array_equal(gradient, [2, 2] if rank == 0 else [-6, -6])
    np.testing.assert_array_equal(given, [3, 3])
    names = _names_in(step, x, tf.constant(True))
    assert len(names) == 3 and names[1:] == ["met", "met.gradient"], names


def _loops() -> None:
    """Two loops that may run at once; their gradients, too."""
    bps.init()
    own = float(bps.rank() + 1)

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)

            def loop(scale: float) -> tf.Tensor:
                return tf.while_loop(
                    lambda number, _: number < 3,
                    lambda number, value: (number + 1, tf.ensure_shape(bps.push_pull(value * scale), [2])),
                    (tf.constant(0), x),
                    parallel_iterations=1,
                )[1]

            results = loop(1.0), loop(2.0)
            loss = tf.reduce_sum(results[0]) + tf.reduce_sum(results[1])
        return results[0] + results[1], tape.gradient(loss, x)

    result, gradient = _called_late(step, tf.constant([1.0, 2.0]) * own)
    np.testing.assert_array_equal(result, [1.5 * 9, 3 * 9])
    np.testing.assert_array_equal(gradient, [9, 9])
    assert len(_names_in(step, tf.constant([1.0, 2.0]))) == 4


def _captured_tensors_of_numbers_that_differ() -> None:
    """TensorFlow calls the placeholder of an eager tensor by a number of the process's: rank 1 has made more."""
    bps.init()
    made = [tf.constant(float(number)) for number in range(1 + 50 * bps.rank())]
    x, y = tf.constant([1.0]) + made[0], tf.constant([3.0])

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.name_scope("inner"):
            return bps.push_pull(x, op=bps.Sum), bps.push_pull(y, op=bps.Sum)

    names = _names_in(step)
    assert bps.broadcast_object(names, 0) == names
    assert len(names) == 2
    first, second = step()
    assert (float(first[0]), float(second[0])) == (2.0, 6.0)


BODIES = [
    _captured_tensors_of_numbers_that_differ,
    _two_gradients_through_one_operation,
    _layers_that_one_rank_has_made_more_of,
    _two_optimizers_in_branches,
    _branches_that_reduce_different_tensors,
    _ranks_in_different_branches_meet,
    _loops,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
