"""allgather, reducescatter, alltoall, process sets, Adasum and join over three workers: values, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.horovod.tensorflow as hvd
import byteps.tensorflow as bps
import numpy as np
from byteps.tensorflow import collectives, ops
from jobs import Outcomes, clean_environment, launcher_command, run_job

_SIZE = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of three workers that has run all bodies."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="120")
    folder = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(_SIZE, 1), _SIZE, BODIES, (), environment, check=False))


def _own(rows: int, rank: int) -> np.ndarray:
    return (np.arange(rows * 2) + 100 * rank).reshape(rows, 2).astype("float32")


def _both(call: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """In eager execution and in a graph."""
    return [call(*arguments, **options), tf.function(lambda *given: call(*given, **options))(*arguments)]


def _allgather() -> None:
    bps.init()
    for rows in ((1, 2, 3), (0, 4, 1), (1000, 0, 1), (0, 0, 0)):
        expected = np.concatenate([_own(rows[rank], rank) for rank in range(_SIZE)])
        for found in _both(bps.allgather, tf.constant(_own(rows[bps.rank()], bps.rank())), name="rows"):
            np.testing.assert_array_equal(found, expected)
    for dtype in (tf.uint8, tf.int64, tf.bfloat16, tf.bool, tf.complex64):
        found = bps.allgather(tf.cast(tf.fill([2], bps.rank()), dtype), name=dtype.name)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, tf.cast(tf.constant([0, 0, 1, 1, 2, 2]), dtype))
    # Results are usable as any tensor: held after others, and changed in place where TensorFlow likes.
    kept = [bps.allgather(tf.fill([1000], float(number))) + 1 for number in range(20)]
    assert [float(one[0]) for one in kept] == [float(number + 1) for number in range(20)]
    with pytest.raises(ValueError, match="dimensions"):
        bps.allgather(1.0)


def _grouped() -> None:
    bps.init()
    rank = bps.rank()
    tensors = [tf.constant(_own(number + rank, rank)) for number in range(8)]
    for gathered in _both(lambda *given: bps.grouped_allgather(list(given), name="g"), *tensors):
        for number, found in enumerate(gathered):
            np.testing.assert_array_equal(found, np.concatenate([_own(number + of, of) for of in range(_SIZE)]))
    whole = [tf.ones([3, 2]) * (rank + 1), tf.ones([4]) * rank]
    for reduced in _both(lambda *given: bps.grouped_reducescatter(list(given), op=bps.Sum, name="r"), *whole):
        np.testing.assert_array_equal(reduced[0], np.full((1, 2), 6))
        np.testing.assert_array_equal(reduced[1], np.full(2 if rank == 0 else 1, 3))


def _groups_of_other_shapes() -> None:
    """Numbers of rows that change in a loop, and differ between ranks: a few graphs do for all of them."""
    bps.init()
    rank = bps.rank()
    traced = 0

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal traced
        traced += 1
        return whole(*arguments, **options)

    whole, collectives.collective = collectives.collective, counting
    pushed, ops._reduce = ops._reduce, lambda *arguments: counting_reduce(*arguments)

    def counting_reduce(*arguments: Any) -> Any:
        nonlocal traced
        traced += 1
        return pushed(*arguments)

    for name in (None, "g"):
        traced = 0
        for rows in range(12):
            given = [tf.constant(_own(rows + rank, rank)), tf.fill([rows * rank], rank)]
            with tf.GradientTape() as tape:
                tape.watch(given)
                first, second = bps.grouped_allgather(given, name=name)
                loss = tf.reduce_sum(first) * float(rank + 1)
            expected = np.concatenate([_own(rows + of, of) for of in range(_SIZE)])
            np.testing.assert_array_equal(first, expected)
            np.testing.assert_array_equal(second, [*[1] * rows, *[2] * 2 * rows])
            assert first.shape == expected.shape and first.dtype == tf.float32 and second.dtype == tf.int32
            gradient = tape.gradient(loss, given[0])
            np.testing.assert_array_equal(gradient, np.full([rows + rank, 2], 2))
        assert traced <= 12, traced  # two shapes and the general one, forward and back; eager execution alone: 48
    traced = 0
    for rows in range(1, 12):
        given = [tf.fill([rows, 2], float(rank)), tf.fill([rows], rank), tf.fill([2], tf.cast(rank, tf.float64))]
        for reduced in (
            bps.grouped_push_pull(given, op=bps.Sum, name="p"),
            bps.grouped_allreduce(given, False, name="p"),
        ):
            for tensor, one in zip(reduced, given):
                assert (tensor.shape, tensor.dtype) == (one.shape, one.dtype)
                np.testing.assert_array_equal(tensor, np.full(one.shape, 3))
    assert traced <= 9, traced
    collectives.collective, ops._reduce = whole, pushed


def _reducescatter() -> None:
    bps.init()
    rank = bps.rank()
    x = tf.reshape(tf.range(14.0), [7, 2]) * float(rank + 1)
    rows = [slice(0, 3), slice(3, 5), slice(5, 7)][rank]
    mine = np.arange(14.0).reshape(7, 2)[rows]
    for op, factor in ((bps.Average, 2), (bps.Sum, 6), (bps.Max, 3), (bps.Min, 1)):
        for found in _both(bps.reducescatter, x, op=op, name=op.name):
            np.testing.assert_array_equal(found, mine * factor)
    scaled = bps.reducescatter(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled")
    np.testing.assert_array_equal(scaled, mine * 12)
    half = bps.reducescatter(x, compression=bps.Compression.fp16, name="half")
    assert half.dtype == tf.float32
    np.testing.assert_array_equal(half, mine * 2)
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.reducescatter(x, op=bps.Adasum)


def _alltoall() -> None:
    bps.init()
    rank = bps.rank()
    equal = tf.constant([10 * rank + to for to in range(_SIZE)])
    for found in _both(bps.alltoall, equal, name="equal"):
        np.testing.assert_array_equal(found, [10 * of + rank for of in range(_SIZE)])
    # To rank r go r rows of every rank, and of rank 1 one more.
    splits = [to + (rank == 1) for to in range(_SIZE)]
    x = tf.fill([sum(splits), 2], float(rank))
    came = [rank, rank + 1, rank]
    for dtype in (tf.int32, tf.int64):
        for found, rows in _both(bps.alltoall, x, tf.constant(splits, dtype), name="splits"):
            assert rows.dtype == dtype
            np.testing.assert_array_equal(rows, came)
            np.testing.assert_array_equal(found, np.repeat([[0, 0], [1, 1], [2, 2]], came, axis=0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        bps.alltoall(x, [5] * _SIZE, name="wrong")
    with pytest.raises(TypeError, match="int32 or int64"):
        bps.alltoall(x, [1.0] * _SIZE)
    with pytest.raises(ValueError, match="one dimension"):
        bps.alltoall(x, tf.zeros([0], tf.int32))


def _arguments_of_byteps_0_3() -> None:
    bps.init()
    rank = bps.rank()
    x = tf.fill([_SIZE, 2], float(rank))
    splits, came = [1] * _SIZE, np.repeat([[0.0] * 2, [1.0] * 2, [2.0] * 2], 1, axis=0)

    def exchange(x: tf.Tensor, **more: Any) -> Any:
        return bps.alltoall(x, splits, scope="of.", name="a", **more)

    for found in _both(exchange, x, with_size=False, recv_splits=splits, compression=bps.Compression.fp16):
        assert found.dtype == tf.float32
        np.testing.assert_array_equal(found, came)
    for _, rows in _both(bps.alltoall, x, name="sized", with_size=True):
        np.testing.assert_array_equal(rows, splits)
    for run in (exchange, tf.function(exchange)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="other rows have come than recv_splits say"):
            run(x, recv_splits=[2, 1, 0])
    with pytest.raises(TypeError, match="compression"):
        exchange(x, compression="fp16")
    for found in _both(bps.allgather, x[:1], name="same", same_shape=True):
        np.testing.assert_array_equal(found, came)
    for run in (bps.allgather, tf.function(bps.allgather)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
            run(x[:rank], name="odd", same_shape=True)
    # Their places in the calls of 0.3 are those of other arguments here.
    for call in (lambda: bps.allgather(x, True), lambda: bps.alltoall(x, splits, splits)):
        with pytest.raises(ValueError, match="name is"):
            call()


def _gradients() -> None:
    bps.init()
    rank = bps.rank()

    def gradient(call: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            # Each rank weighs the result differently.
            loss = tf.reduce_sum(call(x)) * float(rank + 1)
        return tape.gradient(loss, x)

    for run in (gradient, tf.function(gradient, reduce_retracing=True)):
        own = tf.ones([rank + 1, 2])
        np.testing.assert_array_equal(run(lambda x: bps.allgather(x, name="g"), own), np.full((rank + 1, 2), 2))
        whole = tf.ones([7, 2])
        by_row = np.repeat([[1.0, 1], [2, 2], [3, 3]], [3, 2, 2], axis=0)
        np.testing.assert_array_equal(run(lambda x: bps.reducescatter(x, name="a"), whole), by_row)
        summed = run(lambda x: bps.reducescatter(x, op=bps.Sum, name="s"), whole)
        np.testing.assert_array_equal(summed, by_row * 3)
        x = tf.ones([_SIZE * 2, 2])
        back = np.repeat([[1.0, 1], [2, 2], [3, 3]], 2, axis=0)
        np.testing.assert_array_equal(run(lambda x: bps.alltoall(x, name="e"), x), back)
        np.testing.assert_array_equal(run(lambda x: bps.alltoall(x, [2, 2, 2], name="v")[0], x), back)
    with pytest.raises((LookupError, NotImplementedError)):
        gradient(lambda x: bps.reducescatter(x, op=bps.Max, name="m"), whole)


def _process_sets() -> None:
    rank = None
    outer = bps.ProcessSet([2, 0])
    bps.init(process_sets=[outer])
    rank = bps.rank()
    alone = bps.add_process_set([1])
    assert (outer.size(), alone.size()) == (2, 1)
    assert int(bps.size_op(outer.process_set_id)) == 2 and int(bps.rank_op()) == rank
    assert int(bps.process_set_included_op(alone.process_set_id)) == int(rank == 1)
    mine = outer if rank != 1 else alone
    x = tf.constant([1.0, 2.0]) * float(rank + 1)
    total = np.array([1.0, 2.0]) * (4 if rank != 1 else 2)

    for found in _both(bps.allreduce, x, op=bps.Sum, process_set=mine, name="x"):
        np.testing.assert_array_equal(found, total)
    for found in _both(bps.push_pull, x, process_set=mine, name="mean"):
        np.testing.assert_array_equal(found, total / mine.size())
    np.testing.assert_array_equal(bps.grouped_allreduce([x, x], op=bps.Sum, process_set=mine, name="g"), [total] * 2)
    np.testing.assert_array_equal(bps.allgather(tf.fill([1], rank), process_set=mine), [0, 2] if rank != 1 else [1])
    root = 2 if rank != 1 else 1
    np.testing.assert_array_equal(bps.broadcast(x, root, process_set=mine), np.array([1.0, 2.0]) * (root + 1))
    variable = tf.Variable(float(rank))
    bps.broadcast_variables([variable, tf.Variable(1.0)], root, process_set=mine)
    assert variable.numpy() == root
    variable.assign(float(rank + 5))
    bps.broadcast_variables([variable], root, mine)  # in the order of Horovod
    assert variable.numpy() == root + 5
    with pytest.raises(TypeError, match="both process sets"):
        bps.broadcast_variables([variable], root, mine, process_set=mine)
    assert bps.allgather_object(rank, process_set=mine) == ([0, 2] if rank != 1 else [1])

    with bps.DistributedGradientTape(tf.GradientTape(), process_set=mine, op=bps.Sum) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x) * float(rank + 1)
    np.testing.assert_array_equal(tape.gradient(loss, x), [total[0]] * 2)

    def of_set(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(bps.allreduce(x, op=bps.Sum, process_set=mine, name="d")) * float(rank + 1)
        return inner.gradient(loss, x)

    for found in _both(of_set, x):
        np.testing.assert_array_equal(found, [total[0]] * 2)

    def of_broadcast(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(bps.broadcast(x, root, process_set=mine, name="e")) * float(rank + 1)
        return inner.gradient(loss, x)

    for found in _both(of_broadcast, x):
        np.testing.assert_array_equal(found, [total[0] if rank == root else 0] * 2)

    def of_horovods_broadcast(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(hvd.broadcast(x, root, name="f", process_set=mine)) * float(rank + 1)
        return inner.gradient(loss, x)

    for found in _both(of_horovods_broadcast, x):
        np.testing.assert_array_equal(found, [total[0] / mine.size() if rank == root else 0] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        bps.allreduce(x, process_set=alone if rank != 1 else outer, name="others")
    with pytest.raises(ValueError, match="does not know"):
        bps.allreduce(x, process_set=bps.ProcessSet([0, 1]))
    with pytest.raises(ValueError, match="number 77"):
        bps.size_op(77)
    assert bps.remove_process_set(mine)


def _gradients_outside_of_the_process_set() -> None:
    """All ranks give the same set; rank 1 is not in it, and keeps its gradients. What comes behind meets on all."""
    outer = bps.ProcessSet([2, 0])
    bps.init(process_sets=[outer])
    rank = bps.rank()
    w = tf.Variable([1.0, 2.0])
    rows = tf.Variable(tf.ones([3, 1]))

    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(w) * float(rank + 1) + tf.reduce_sum(tf.gather(rows, [0, 2]))
        part = bps.DistributedGradientTape(tape, process_set=outer, op=bps.Sum)
        dense, sparse = part.gradient(loss, [w, rows])
        return [dense, tf.convert_to_tensor(sparse), bps.DistributedGradientTape(tape, op=bps.Sum).gradient(loss, w)]

    for run in (gradients, tf.function(gradients)):
        dense, sparse, of_all = run()
        np.testing.assert_array_equal(dense, [4.0 if rank != 1 else 2.0] * 2)
        np.testing.assert_array_equal(sparse, np.array([[1.0], [0], [1]]) * (2 if rank != 1 else 1))
        np.testing.assert_array_equal(of_all, [6.0] * 2)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=0.0)
        optimizer = bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), process_set=outer)
        step = optimizer.minimize(variable * float(rank + 1))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        assert session.run(variable) == -2.0


def _adasum() -> None:
    """Of equal tensors it is their mean, of orthogonal ones their sum."""
    bps.init()
    for found in _both(bps.allreduce, tf.constant([1.0, 2.0]), op=bps.Adasum, name="equal"):
        np.testing.assert_allclose(found, [1, 2], rtol=1e-6)
    own = tf.one_hot(bps.rank(), _SIZE)
    np.testing.assert_allclose(bps.allreduce(own, op=bps.Adasum, name="orthogonal"), np.ones(_SIZE), rtol=1e-6)
    with bps.DistributedGradientTape(tf.GradientTape(), op=bps.Adasum) as tape:
        tape.watch(own)
        loss = tf.reduce_sum(own * tf.one_hot(bps.rank(), _SIZE))
    np.testing.assert_allclose(tape.gradient(loss, own), np.ones(_SIZE), rtol=1e-6)


def _join() -> None:
    """Rank r has r + 1 batches."""
    bps.init()
    rank = bps.rank()
    for step in range(rank + 1):
        left = _SIZE - step  # ranks that still have data
        total = bps.allreduce(tf.ones([2]), op=bps.Sum, name="x")
        np.testing.assert_array_equal(total, np.full(2, left))
        gathered = bps.allreduce(tf.ones([2]), name="mean")
        np.testing.assert_allclose(gathered, np.full(2, left / _SIZE), rtol=1e-6)
    assert bps.join() == _SIZE - 1
    np.testing.assert_array_equal(bps.allreduce(tf.ones([1]), op=bps.Sum, name="x"), [3])


def _disagreement() -> None:
    bps.init()
    dtype = tf.float32 if bps.rank() == 0 else tf.int32
    for run in (bps.allgather, tf.function(bps.allgather)):
        with pytest.raises(tf.errors.FailedPreconditionError, match="do not agree"):
            run(tf.zeros([2], dtype), name="x")
    np.testing.assert_array_equal(bps.allgather(tf.fill([1], bps.rank()), name="x"), [0, 1, 2])


def _not_initialized() -> None:
    bps.init()
    step = tf.function(lambda x: bps.allgather(x, name="x"))
    step(tf.ones([2]))
    bps.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"bps\.init\(\)"):
        step(tf.ones([2]))
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.alltoall(tf.ones([3]))
    bps.init()


def _many_at_once() -> None:
    """More than any pool of threads has, each rank in an order of its own."""
    bps.init()
    order = list(range(100)) if bps.rank() == 0 else list(reversed(range(100)))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.reduce_sum(bps.allgather(x, name=f"{number}")) for number in order])

    assert float(step(tf.ones([4]))) == 1200


BODIES = [
    _allgather,
    _grouped,
    _groups_of_other_shapes,
    _reducescatter,
    _alltoall,
    _arguments_of_byteps_0_3,
    _gradients,
    _process_sets,
    _gradients_outside_of_the_process_set,
    _adasum,
    _join,
    _disagreement,
    _not_initialized,
    _many_at_once,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
