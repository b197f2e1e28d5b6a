"""push_pull and broadcast over several workers: values, names, gradients, errors on every rank, concurrency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps
import byteps.horovod.tensorflow as hvd
import byteps.tensorflow as bps
import numpy as np
from byteps.compression import Compressor
from jobs import Outcomes
from timelines import path_of, read_whole

RunWorkers = Callable[..., Any]

DTYPES = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]
SHAPES = [(), (0,), (1,), (1001,), (33, 0), (37, 41)]


def _contribution(dtype: tf.DType, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Small whole numbers: every reduction of two of them is exact in every dtype."""
    count = int(np.prod(shape))
    return ((np.arange(count) + 3 * rank) % 5 + 1).reshape(shape).astype(dtype.as_numpy_dtype)


_REDUCTIONS = {
    bps.Sum: lambda a, b: a + b,
    bps.Min: np.minimum,
    bps.Max: np.maximum,
    bps.Product: lambda a, b: a * b,
}


def _dtypes_shapes_and_ops() -> None:
    bps.init()
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = [_contribution(dtype, shape, rank) for rank in range(2)]
            for op, reduce in _REDUCTIONS.items():
                name = f"{dtype.name} {shape} {op.name}"
                result = bps.push_pull(tf.constant(inputs[bps.rank()]), op=op, name=name)
                assert result.dtype == dtype and result.shape == shape, name
                np.testing.assert_array_equal(result.numpy(), reduce(*inputs), err_msg=name)
            result = bps.push_pull(inputs[bps.rank()], name=f"{dtype.name} {shape} average")
            total = inputs[0].astype(np.float64) + inputs[1].astype(np.float64)
            expected = total / 2 if dtype.is_floating else total // 2
            np.testing.assert_array_equal(result.numpy().astype(np.float64), expected)


def _bools_and_complex_numbers() -> None:
    bps.init()
    rank = bps.rank()
    flags = tf.constant([[True, True, False], [True, False, False]][rank])
    np.testing.assert_array_equal(bps.push_pull(flags, op=bps.ReduceOp.BitAnd, name="and"), [True, False, False])
    np.testing.assert_array_equal(bps.push_pull(flags, op=bps.ReduceOp.BitOr, name="or"), [True, True, False])
    np.testing.assert_array_equal(bps.push_pull(tf.constant([6, 3][rank]), op=bps.ReduceOp.BitXor, name="xor"), 5)
    for dtype in (tf.complex64, tf.complex128):
        value = tf.constant([1 + 1j, 2j], dtype) * (rank + 1)
        np.testing.assert_array_equal(bps.push_pull(value, op=bps.Sum, name=dtype.name), [3 + 3j, 6j])
    with pytest.raises(tf.errors.InvalidArgumentError, match="complex64"):
        bps.push_pull(tf.constant([1j], tf.complex64), op=bps.Max, name="max")


def _in_a_function() -> None:
    bps.init()
    rank = bps.rank()

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        return bps.push_pull(x), bps.push_pull(x, op=bps.Sum), bps.grouped_push_pull([x, 2 * x], op=bps.Max)

    for _ in range(3):
        mean, total, largest = step(tf.constant([1.0, 2.0]) * (rank + 1))
        np.testing.assert_array_equal(mean, [1.5, 3])
        np.testing.assert_array_equal(total, [3, 6])
        np.testing.assert_array_equal(largest, [[2, 4], [4, 8]])
    # Another trace, on one rank only: names in graphs do not count calls.
    if rank == 1:
        step.get_concrete_function(tf.TensorSpec([5]))
    np.testing.assert_array_equal(step(tf.fill([3], float(rank)))[1], [1, 1, 1])


def _order_differs() -> None:
    """Traced and started in an order of each rank's own."""
    bps.init()
    order = list(range(30)) if bps.rank() == 0 else list(reversed(range(30)))

    @tf.function
    def step(x: tf.Tensor) -> dict[int, tf.Tensor]:
        return {number: bps.push_pull(x + number, op=bps.Sum, name=f"t{number}") for number in order}

    results = step(tf.ones([17]))
    for number in order:
        np.testing.assert_array_equal(results[number], np.full(17, 2.0 + 2 * number))


def _gradients() -> None:
    bps.init()
    rank = bps.rank()
    x = tf.constant([1.0, 2.0]) * (rank + 1)

    def gradient(op: bps.ReduceOp) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            # Each rank weighs the result differently, so that its gradient does.
            loss = tf.reduce_sum(bps.push_pull(x, op=op, name="x")) * float(rank + 1)
        return tape.gradient(loss, x)

    for run in (gradient, tf.function(gradient)):
        np.testing.assert_array_equal(run(bps.Sum), [3, 3])
        np.testing.assert_array_equal(run(bps.Average), [1.5, 1.5])
    with pytest.raises((LookupError, NotImplementedError)):
        gradient(bps.Max)

    def of_broadcast(broadcast: Any, **options: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(broadcast(x, root_rank=1, **options)) * float(rank + 1)
        return tape.gradient(loss, x)

    # In a function, too, where the zeros of the others do not depend on what they send.
    for run in (of_broadcast, tf.function(of_broadcast)):
        for options in ({}, {"name": "b"}):
            np.testing.assert_array_equal(run(bps.broadcast, **options), [3, 3] if rank == 1 else [0, 0])
            # Horovod's is their average.
            np.testing.assert_array_equal(run(hvd.broadcast, **options), [1.5, 1.5] if rank == 1 else [0, 0])
    assert hvd.broadcast(tf.constant([rank]), 1).numpy().tolist() == [1]
    with pytest.raises(ValueError, match="gradient_op"):
        bps.broadcast(x, 0, gradient_op=bps.Max)


def _compression() -> None:
    bps.init()
    x = tf.constant([1.0, 2.0, 1e-3]) * (bps.rank() + 1)
    for compression in (bps.Compression.fp16, bps.Compression.bf16):
        result = bps.push_pull(x, name="x", compression=compression)
        assert result.dtype == tf.float32
        np.testing.assert_allclose(result, [1.5, 3, 1.5e-3], rtol=1e-2)
    integers = bps.push_pull(tf.constant([3]), name="i", op=bps.Sum, compression=bps.Compression.fp16)
    assert integers.dtype == tf.int32 and integers.numpy() == [6]


def _disagreement() -> None:
    bps.init()
    rank = bps.rank()
    with pytest.raises(tf.errors.FailedPreconditionError, match="ranks disagree: rank"):
        bps.push_pull(tf.zeros([2 + rank]), name="x")

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return bps.push_pull(x, name="x")

    dtype = tf.float32 if rank == 0 else tf.int32
    with pytest.raises(tf.errors.FailedPreconditionError, match="disagree"):
        step(tf.zeros([2], dtype))
    # The session is as good as before.
    np.testing.assert_array_equal(step(tf.fill([2], float(rank))), [0.5, 0.5])


def _broadcast() -> None:
    bps.init()
    for root in range(2):
        for dtype in DTYPES:
            given = _contribution(dtype, (5, 3), bps.rank())
            np.testing.assert_array_equal(bps.broadcast(given, root).numpy(), _contribution(dtype, (5, 3), root))


def _the_next_session() -> None:
    for round_ in range(3):
        bps.init()
        assert bps.push_pull(tf.constant(1 + bps.rank()), op=bps.Sum, name="x").numpy() == 3, round_
        bps.shutdown()
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"bps\.init\(\)"):
            bps.push_pull(tf.constant(1.0), name="x")
    bps.init()


def _one_name_in_loops() -> None:
    bps.init()
    own = float(bps.rank() + 1)

    @tf.function
    def of_for(count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for number in tf.range(count):
            total += bps.push_pull(own * tf.cast(number, tf.float32), op=bps.Sum, name="met")
        return total

    @tf.function
    def of_map(numbers: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda number: bps.push_pull(own * number, op=bps.Sum, name="mapped"), numbers)

    assert float(of_for(tf.constant(20))) == 3 * 190
    np.testing.assert_array_equal(of_map(tf.range(20.0)), 3 * np.arange(20))


def _what_cannot_be_sent() -> None:
    bps.init()
    calls = {
        "push_pull": lambda value: bps.push_pull(value),
        "broadcast": lambda value: bps.broadcast(value, 0),
        "grouped": lambda value: bps.grouped_push_pull([value, value]),
        "allgather": lambda value: bps.allgather(value),
        "reducescatter": lambda value: bps.reducescatter(value),
        "alltoall": lambda value: bps.alltoall(value),
        "slices": lambda value: bps.push_pull(tf.IndexedSlices(value, tf.constant([0, 1]), tf.constant([2]))),
    }
    wrong = [tf.constant([1, 2], dtype) for dtype in (tf.uint16, tf.uint32, tf.uint64)] + [tf.constant(["a", "b"])]
    for call in calls.values():
        for value in wrong:
            for run in (call, tf.function(call)):
                # On one rank alone: no number is used up.
                if bps.rank() == 0:
                    with pytest.raises(TypeError, match=f"dtype {value.dtype.name} cannot be sent"):
                        run(value)
    for name in ("a\0b", "", "\ud800"):
        with pytest.raises(ValueError, match="name is"):
            bps.push_pull(tf.ones([2]), name=name)
    np.testing.assert_array_equal(bps.push_pull(tf.ones([2])), [1, 1])


def _refused_calls_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    bps.init()
    x = tf.ones([2, 3])
    with_priority = {"priority": 1.5}
    of_integers = {"tensor": tf.constant([[1]]), "postscale_factor": 2.0}
    calls: dict[str, tuple[Callable[..., tf.Tensor], dict[str, Any]]] = {
        "push_pull": (bps.push_pull, with_priority),
        "broadcast": (lambda tensor, **options: bps.broadcast(tensor, 0, **options), with_priority),
        "allreduce": (bps.allreduce, of_integers),
        "allgather": (bps.allgather, with_priority),
        "reducescatter": (bps.reducescatter, of_integers),
        "alltoall": (bps.alltoall, {"splits": [1.0, 1.0]}),
    }
    expected = dict.fromkeys(calls, x) | {"allgather": tf.ones([4, 3]), "reducescatter": tf.ones([1, 3])}
    for name, (call, wrong) in calls.items():
        if bps.rank() == 0:
            for value in (tf.constant(["text"]), tf.constant([1], tf.uint32)):
                with pytest.raises(TypeError, match="cannot be sent"):
                    call(value)
            with pytest.raises((TypeError, ValueError)):
                call(**{"tensor": x, **wrong})
        np.testing.assert_array_equal(call(x), expected[name], err_msg=name)
    with pytest.raises(ValueError, match="name is"):
        bps.push_pull(x, scope="a\0", name="b")


def _refused_arguments_use_no_number() -> None:
    """The same of what is wrong with a reduction, a root or splits."""
    bps.init()
    rank = bps.rank()
    alone = bps.add_process_set([rank])
    x, whole, flags = tf.ones([2, 3]), tf.ones([2, 3], tf.int32), tf.ones([2, 3], tf.bool)
    rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]), tf.constant([2, 3]))
    invalid = tf.errors.InvalidArgumentError
    calls: list[tuple[type[Exception], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (invalid, bps.push_pull, (flags,), {}),
        (invalid, bps.push_pull, (whole,), {"op": bps.Adasum}),
        (invalid, bps.push_pull, (tf.complex(x, x),), {"op": bps.Max}),
        (ValueError, bps.push_pull, (rows,), {"op": bps.Max}),
        (invalid, bps.allreduce, (flags,), {}),
        (invalid, bps.reducescatter, (flags,), {}),
        (invalid, bps.reducescatter, (x,), {"op": bps.ReduceOp.BitOr}),
        (ValueError, bps.broadcast, (x, 2), {}),
        (ValueError, bps.broadcast, (x, 1 - rank), {"process_set": alone}),
        (invalid, bps.alltoall, (x, [3, -1]), {}),
        (invalid, bps.alltoall, (x, [1, 0]), {}),
        (invalid, bps.alltoall, (x, [1, 1, 0]), {}),
        (invalid, bps.alltoall, (tf.ones([3]),), {}),
        (TypeError, bps.push_pull, (x,), {"compression": _Failing}),
        (TypeError, bps.alltoall, (x,), {"compression": _Failing}),
    ]
    for kind, call, arguments, options in calls:
        if rank == 0:
            with pytest.raises(kind):
                call(*arguments, **options)
        call(x, *([1] if call is bps.broadcast else []))


class _Failing(Compressor):
    """Fails before anything is sent."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        raise TypeError("it cannot be compressed")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


def _many_at_once() -> None:
    """200 tensors, whose threads would be held by the first 1 otherwise: the last rank to come frees all of them."""
    bps.init()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([bps.push_pull(x + number, op=bps.Sum, name=f"{number}") for number in range(200)])

    # Each rank starts with another tensor, and the other's comes last.
    @tf.function
    def crossed(x: tf.Tensor) -> tf.Tensor:
        numbers = range(200) if bps.rank() == 0 else reversed(range(200))
        return tf.add_n([bps.push_pull(x, op=bps.Sum, name=f"crossed {number}") for number in numbers])

    np.testing.assert_array_equal(step(tf.zeros([3])), np.full(3, 200.0 * 199))
    np.testing.assert_array_equal(crossed(tf.ones([3])), np.full(3, 400.0))


def _one_inter_op_thread() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _many_at_once()


BODIES = [
    _dtypes_shapes_and_ops,
    _bools_and_complex_numbers,
    _in_a_function,
    _order_differs,
    _gradients,
    _compression,
    _disagreement,
    _broadcast,
    _the_next_session,
    _one_name_in_loops,
    _what_cannot_be_sent,
    _refused_calls_use_no_number,
    _many_at_once,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_one_inter_op_thread(run_workers: RunWorkers) -> None:
    run_workers(_one_inter_op_thread)


def _missing() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:
        with pytest.raises(tf.errors.DeadlineExceededError) as caught:
            tf.function(bps.push_pull)(tf.ones([3]), name="lonely")
        message = str(caught.value)
    bps.barrier("the end", timeout=60)
    return message


def _two_of_one_name() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:
        for operation in (bps.push_pull, bps.allgather):
            twice = tf.function(lambda x, send=operation: [send(x, name=send.__name__), send(x, name=send.__name__)])
            with pytest.raises(tf.errors.AlreadyExistsError) as caught:
                twice(tf.ones([1]))
            message = str(caught.value)
            assert f'"{operation.__name__}"' in message and "still in flight" in message, message
            assert "tf.control_dependencies" in message and "parallel_iterations=1" in message, message
    bps.barrier("the end", timeout=60)
    return message


def test_two_of_one_name_are_told_the_remedy(run_workers: RunWorkers) -> None:
    """No other rank answers, so that the first is in flight when the second comes."""
    assert run_workers(_two_of_one_name, BYTEPS_OP_TIMEOUT="4").results[0]


def _refused_on_one_rank() -> None:
    """Rank 1 has one of the name in flight when its program comes to the next."""
    bps.init()
    ones = tf.ones([3])
    calls = {
        "push_pull": lambda name: bps.push_pull(ones, name=name, op=bps.Sum),
        "broadcast": lambda name: bps.broadcast(2 * ones, 0, name=name),
        "allgather": lambda name: bps.allgather(ones, name=name),
    }
    for kind, call in calls.items():
        begun = None
        if bps.rank() == 1:
            if kind == "allgather":
                begun = byteps.allgather_async(np.ones(3, np.float32), name=kind)
            elif kind == "broadcast":
                begun = byteps.broadcast_async(np.ones(3, np.float32), 0, name=kind)
            else:
                begun = byteps.push_pull_async(np.ones(3, np.float32), name=kind, op=byteps.Sum)
            with pytest.raises(tf.errors.AlreadyExistsError):
                call(kind)
        bps.barrier(f"{kind} refused", timeout=60)
        if begun is None:
            assert call(kind).numpy().sum() == 6
            with pytest.raises(tf.errors.AbortedError, match=r"rank 1 .*another operation of this name was in flight"):
                call(kind)
        else:
            begun.wait()
        bps.barrier(f"{kind} told", timeout=60)
        assert call(kind).numpy().sum() == 6


def test_an_operation_refused_on_one_rank_fails_on_all(run_workers: RunWorkers) -> None:
    run_workers(_refused_on_one_rank, BYTEPS_OP_TIMEOUT="20")


def _unused_results() -> None:
    bps.init()
    x = tf.ones([3])

    @tf.function
    def step(x: tf.Tensor, ordered: bool) -> tf.Tensor:
        bps.push_pull(x, name="unused")
        bps.broadcast(x, 0, name="unused broadcast")
        bps.allgather(x, name="unused allgather")
        # What the step computes waits for it, and does not use it.
        barrier = [bps.push_pull(x, name="ordered")] if ordered else []
        with tf.control_dependencies(barrier):
            return bps.push_pull(x, name="used")

    for ordered in (False, True):
        np.testing.assert_array_equal(step(x, ordered), x)
    # One rank uses what the other does not.
    if bps.rank() == 0:
        with pytest.raises(tf.errors.DeadlineExceededError, match=r'"halved".*rank 1'):
            tf.function(lambda x: bps.push_pull(x, name="halved"))(x)
    else:
        tf.function(lambda x: (bps.push_pull(x, name="halved"), x)[1])(x)
    bps.barrier("the end", timeout=60)
    # Eager execution runs all there is.
    bps.push_pull(x, name="eager")
    bps.shutdown()


def test_unused_results(run_workers: RunWorkers, tmp_path: Path) -> None:
    """TensorFlow leaves out of a tf.function what leads to none of its results (docs/frameworks/tensorflow.md)."""
    path = tmp_path / "t.json"
    run_workers(_unused_results, BYTEPS_TIMELINE=str(path), BYTEPS_OP_TIMEOUT="4")
    timelines = [read_whole(path_of(path, rank)) for rank in range(2)]
    sent = [{span.args["tensor"] for span in timeline.complete if "tensor" in span.args} for timeline in timelines]
    assert sent == [{"used", "ordered", "halved", "eager"}, {"used", "ordered", "eager"}]


def test_who_is_missing(run_workers: RunWorkers) -> None:
    message = run_workers(_missing, BYTEPS_OP_TIMEOUT="4").results[0]
    assert "lonely" in message and "1" in message, message


def _peer_dies() -> None:
    import os

    bps.init()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return bps.push_pull(x, name="x")

    step(tf.ones([3]))
    if bps.rank() == 1:
        os._exit(0)  # so that the other's exit status is the job's
    with pytest.raises(tf.errors.UnavailableError, match="rank 1"):
        for _ in range(100):
            step(tf.ones([3]))
    with pytest.raises(tf.errors.UnavailableError, match="rank 1") as raised:
        bps.push_pull(tf.ones([1]), name="y")
    print(f"heard: {raised.value}", flush=True)
    raise raised.value


def test_a_dead_peer_is_an_error_of_tensorflow(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False)
    assert job.returncode != 0, job.output
    assert "heard: " in job.stdout, job.output


def test_refused_arguments_use_no_number(run_workers: Callable[..., Any]) -> None:
    run_workers(_refused_arguments_use_no_number, BYTEPS_OP_TIMEOUT="20")
