"""byteps.mxnet.push_pull and broadcast over two workers and a server: the bits, the engine's dependencies both ways,
the errors on every rank, and that the session goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

mx = framework("mxnet")

import byteps.mxnet as bps
import numpy as np
from array_reduction import OPS, make, reduce, same_bits
from jobs import Outcomes
from mxnet.contrib.amp.amp import bfloat16

RunWorkers = Callable[..., Any]
DTYPES = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")]
SHAPES = [(1,), (1001,), (37, 41)]


def _array(values: np.ndarray) -> mx.nd.NDArray:
    return mx.nd.array(values, dtype=values.dtype)


def _all_dtypes_and_ops() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = [make(dtype, shape, of) for of in range(size)]
            given = _array(inputs[rank])
            for op in OPS:
                name = f"{dtype} {shape} {op}"
                result = bps.push_pull(given, op=bps.ReduceOp[op], name=name)
                assert same_bits(result.asnumpy(), reduce(inputs, op)), name
            assert same_bits(given.asnumpy(), inputs[rank]), "the input is left alone"
            in_place = _array(inputs[rank])
            assert bps.byteps_push_pull(in_place, name=f"{dtype} {shape}", is_average=False) is in_place
            assert same_bits(in_place.asnumpy(), reduce(inputs, "Sum"))
            for root in range(size):
                assert same_bits(bps.broadcast(given, root).asnumpy(), inputs[root])
                mine = _array(inputs[rank])
                bps.broadcast_(mine, root)
                assert same_bits(mine.asnumpy(), inputs[root])


def _bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Finite float32 as bfloat16, to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bfloat16() -> None:
    """By the dtype of MXNet's own for it, since NumPy has none of the name."""
    bps.init()
    rank, size = bps.rank(), bps.size()

    def make_bits(of: int) -> np.ndarray:
        generator = np.random.default_rng(of)
        return _bfloat16_bits(generator.standard_normal((37, 41)) * 10.0 ** generator.integers(-3, 4, (37, 41)))

    def check(result: mx.nd.NDArray, expected: np.ndarray) -> None:
        assert result.dtype == bfloat16
        np.testing.assert_array_equal(result.asnumpy().view(np.uint16), expected)

    bits = [make_bits(of) for of in range(size)]
    wide = [(each.astype(np.uint32) << 16).view(np.float32) for each in bits]
    given = mx.nd.cast(mx.nd.array(wide[rank]), dtype=bfloat16)
    check(given, bits[rank])
    for op in OPS:
        check(bps.push_pull(given, op=bps.ReduceOp[op], name=f"bfloat16 {op}"), _bfloat16_bits(reduce(wide, op)))
    check(bps.push_pull_inplace(given.copy(), name="in place"), _bfloat16_bits(reduce(wide, "Average")))
    check(bps.push_pull(given, compression=bps.Compression.fp16), _bfloat16_bits(reduce(wide, "Average")))
    scaled = bps.allreduce(given, op=bps.Sum, prescale_factor=2.0, postscale_factor=0.5)
    check(scaled, _bfloat16_bits(reduce(wide, "Sum")))
    scaled = bps.allreduce_(given.copy(), op=bps.Sum, prescale_factor=2.0, postscale_factor=0.5)
    check(scaled, _bfloat16_bits(reduce(wide, "Sum")))
    for root in range(size):
        check(bps.broadcast(given, root), bits[root])
    check(bps.allgather(given), np.concatenate(bits))
    rows = slice(0, 19) if rank == 0 else slice(19, 37)
    check(bps.reducescatter(given), _bfloat16_bits(reduce(wide, "Average"))[rows])
    check(bps.alltoall(given[:36]), np.concatenate([each[18 * rank : 18 * rank + 18] for each in bits]))


def _numpy_interface() -> None:
    bps.init()
    mx.npx.set_np()
    try:
        for shape in ((), (0,), (3, 0), (4,)):
            result = bps.push_pull(mx.np.ones(shape), average=False, name=f"np {shape}")
            assert type(result) is mx.np.ndarray and result.shape == shape
            assert np.array_equal(result.asnumpy(), 2 * np.ones(shape))
        assert bps.push_pull(mx.np.array([True, bps.rank() == 0]), op=bps.Min).asnumpy().tolist() == [True, False]
    finally:
        mx.npx.reset_np()


def _dependencies() -> None:
    """What an operation reads has been computed; what reads its result waits; also when Python has dropped it all."""
    bps.init()
    rank = bps.rank()
    for turn in range(20):
        x = mx.nd.ones((300, 300)) * (turn + rank)
        for _ in range(3):
            x = mx.nd.dot(x, mx.nd.ones((300, 300))) / 300
        bps.byteps_push_pull(x, name="x", is_average=False)
        y = x + 1
        x += 5  # after the operation, which works in place
        z = bps.push_pull(mx.nd.slice(y, (0, 0), (2, 2)), average=False, name="temporary")
        assert np.allclose(z.asnumpy(), 2 * (2 * turn + 2)) and np.allclose(x.asnumpy(), 2 * turn + 6)
    kept = [bps.push_pull(mx.nd.ones((50_000,)) * (n + rank), average=False, name=f"kept {n}") for n in range(50)]
    for n, array in enumerate(kept):
        assert np.array_equal(array.asnumpy(), np.full(50_000, 2 * n + 1))
    view = mx.nd.arange(12).reshape((4, 3))
    bps.byteps_push_pull(view[1:3], name="view", is_average=False)
    assert np.array_equal(view.asnumpy(), np.arange(12).reshape(4, 3) * np.array([[1], [2], [2], [1]]))


def _one_name_at_once() -> None:
    """Operations of one name run in the order of the calls."""
    bps.init()
    results = [bps.push_pull(mx.nd.full((7 + n % 3,), n + bps.rank()), average=False, name="again") for n in range(100)]
    for n, result in enumerate(results):
        assert np.array_equal(result.asnumpy(), np.full(7 + n % 3, 2 * n + 1)), n


def _many_at_once() -> None:
    """Two hundred, which the ranks start in different orders, with a single thread of the engine."""
    bps.init()
    rank = bps.rank()
    arrays = [mx.nd.full((100,), n + rank) for n in range(200)]
    order = range(200) if rank == 0 else reversed(range(200))
    for n in order:
        bps.byteps_push_pull(arrays[n], name=f"array {n}", priority=n % 5, is_average=False)
    for n, array in enumerate(arrays):
        assert np.array_equal(array.asnumpy(), np.full(100, 2 * n + 1))


def _gradients() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    weights = mx.nd.array([1, 10, 100]) * (rank + 1)
    expected = np.array([1, 10, 100]) * sum(range(1, size + 1))
    for op, share in ((bps.Sum, 1.0), (bps.Average, 1.0 / size)):
        x = mx.nd.ones((3,))
        x.attach_grad()
        with mx.autograd.record():
            loss = (bps.push_pull(x, op=op, name="x") * weights).sum()
        loss.backward()
        assert np.allclose(x.grad.asnumpy(), expected * share)


def _gradients_are_added_up() -> None:
    """Of arrays with grad_req="add", over two backward passes."""
    bps.init()
    sent = 2.0 if bps.rank() == 0 else 0.0
    reduce, send = functools.partial(bps.push_pull, op=bps.Sum), functools.partial(bps.broadcast, root_rank=0)
    for ones in (mx.nd.ones, mx.np.ones):
        for call, gradient in ((reduce, 2.0), (send, sent)):
            x = ones((3,))
            x.attach_grad("add")
            for _ in range(2):
                with mx.autograd.record():
                    loss = call(x, name="added up").sum()
                loss.backward()
            assert np.array_equal(x.grad.asnumpy(), np.full(3, 2 * gradient)), x.grad


def _gradient_of_a_broadcast() -> None:
    """The sum of the gradients on the root, and zeros on the others."""
    bps.init()
    x = mx.nd.full((3,), bps.rank())
    x.attach_grad()
    with mx.autograd.record():
        loss = (bps.broadcast(x, 1, name="b") * (bps.rank() + 2)).sum()
    loss.backward()
    assert loss.asscalar() == 3 * (bps.rank() + 2)
    assert x.grad.asnumpy().tolist() == [5.0 if bps.rank() == 1 else 0.0] * 3


def _gradient_of_a_broadcast_of_plain_arrays() -> None:
    """Where the root's alone is in a graph: the others pass what only has the shape."""
    bps.init()
    for module in (mx.nd, mx.np):
        x = module.full((3,), bps.rank())
        if bps.rank() == 1:
            x.attach_grad()
        with mx.autograd.record():
            loss = (bps.broadcast(x, 1, name=f"plain {module.__name__}") * (bps.rank() + 2)).sum()
        loss.backward()
        assert float(loss.asnumpy().sum()) == 3 * (bps.rank() + 2)
        assert bps.rank() == 0 or x.grad.asnumpy().tolist() == [5.0] * 3


def _gradient_of_a_broadcast_in_shutdown() -> None:
    """Its turn comes when shutdown() waits for the engine."""
    bps.init()
    x = mx.nd.ones((600, 600))
    x.attach_grad()
    with mx.autograd.record():
        product = bps.broadcast(x, 1, name="late")
        for _ in range(20):
            product = mx.nd.dot(product, product) / 600
    product.backward()
    rank = bps.rank()
    bps.shutdown()
    # 2^20 factors, and on each rank a gradient: all ones.
    expected = 2.0 * 2**20 if rank == 1 else 0.0
    np.testing.assert_allclose(x.grad.asnumpy(), np.full((600, 600), expected), rtol=1e-3)


def _compressed() -> None:
    bps.init()
    inputs = [np.nan_to_num(make(np.dtype(np.float32), (5000,), of)) for of in range(bps.size())]
    result = bps.push_pull(_array(inputs[bps.rank()]), compression=bps.Compression.fp16, name="x")
    assert same_bits(result.asnumpy(), reduce([x.astype(np.float16) for x in inputs], "Average").astype(np.float32))


def _mismatches() -> None:
    bps.init()
    rank = bps.rank()

    def expect(call: Callable[[], mx.nd.NDArray], name: str) -> None:
        with pytest.raises(mx.base.MXNetError) as raised:
            call().asnumpy()
        for word in (name, "rank 0", "rank 1", "disagree"):
            assert word in str(raised.value), (word, str(raised.value))
        # The session goes on, and so do the name and the engine.
        assert bps.push_pull(mx.nd.ones((3,)), average=False, name=name).asnumpy().tolist() == [2, 2, 2]
        mx.nd.waitall()

    expect(lambda: bps.push_pull(mx.nd.ones((3 + rank,)), name="shape"), "shape")
    expect(lambda: bps.push_pull(mx.nd.ones((3,), dtype=["float32", "int32"][rank]), name="dtype"), "dtype")
    expect(lambda: bps.push_pull(mx.nd.ones((3,)), op=[bps.Sum, bps.Min][rank], name="operation"), "operation")
    expect(lambda: bps.broadcast(mx.nd.ones((3,)), rank, name="root"), "root")
    expect(lambda: bps.byteps_push_pull(mx.nd.ones((3 + rank,)), name="in place") + 1, "in place")


def _wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.push_pull(mx.nd.ones((1,)))
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.broadcast_parameters({})
    bps.init()
    one = mx.nd.ones((1,))
    for call, kind, words in (
        (lambda: bps.push_pull(np.ones(1)), TypeError, "ndarray"),
        (lambda: bps.push_pull(one.tostype("row_sparse")), TypeError, "row_sparse"),
        (lambda: bps.push_pull(one, op=9), ValueError, "op is 9"),
        (lambda: bps.push_pull(one, bps.Max), TypeError, "op=Max"),
        (lambda: bps.byteps_push_pull(one, is_average=bps.Sum), TypeError, "op=Sum"),
        (lambda: bps.allreduce(one, bps.Max), TypeError, "op=Max"),
        (lambda: bps.push_pull(one, priority=1.5), TypeError, "priority"),
        (lambda: bps.push_pull(one, name=""), ValueError, "name"),
        (lambda: bps.push_pull(one, compression=1), TypeError, "compression"),
        (lambda: bps.broadcast(one, 2), ValueError, "root_rank"),
        (lambda: bps.byteps_declare_tensor("x", byteps_compressor_type="onebit"), NotImplementedError, "onebit"),
        (lambda: bps.broadcast_parameters([one]), ValueError, "dict"),
        (lambda: bps.broadcast_parameters({"x": 1}), ValueError, "int"),
    ):
        with pytest.raises(kind, match=words):
            call()
    bps.byteps_declare_tensor("x")

    # shutdown() runs what the engine has not begun; an operation after it says what is missing.
    last = bps.push_pull(mx.nd.dot(mx.nd.ones((500, 500)), mx.nd.ones((500, 500))), average=False, name="last")
    bps.shutdown()
    assert last.asnumpy()[0, 0] == 1000
    bps.init()
    assert bps.push_pull(one, average=False, name="x").asscalar() == 2


def _refused_calls_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    bps.init()
    x = mx.nd.ones((2, 3))
    calls: dict[str, Callable[..., mx.nd.NDArray]] = {
        "push_pull": bps.push_pull,
        "in place": lambda tensor, **options: bps.push_pull_inplace(tensor.copy(), **options),
        "broadcast": lambda tensor, **options: bps.broadcast(tensor, 0, **options),
        "broadcast in place": lambda tensor, **options: bps.broadcast_(tensor.copy(), 0, **options),
        "allgather": bps.allgather,
        "reducescatter": bps.reducescatter,
        "alltoall": bps.alltoall,
    }
    rows = {"allgather": 4, "reducescatter": 1}
    for name, call in calls.items():
        if bps.rank() == 0:
            with pytest.raises(TypeError, match="sparse"):
                call(x.tostype("row_sparse"))
            with pytest.raises(TypeError, match="priority"):
                call(x, priority=1.5)
            with pytest.raises(ValueError, match="process_set"):
                call(x, process_set=bps.ProcessSet([0, 1]))
        assert np.array_equal(call(x).asnumpy(), np.ones((rows.get(name, 2), 3))), name


def _refused_arrays_are_left_alone() -> None:
    """An array that a call would change has its values still when the call is refused."""
    bps.init()
    wrong: list[dict[str, Any]] = [
        {"op": bps.ReduceOp.BitAnd},
        {"op": bps.Sum, "average": True},
        {"priority": 1.5},
        {"process_set": bps.ProcessSet([0, 1])},
        {"process_set": "all"},
        {"name": "with\0"},
        {"postscale_factor": "half"},
        {"postscale_factor": None},
    ]
    for options in wrong:
        for call in (bps.allreduce_, lambda x, **more: bps.grouped_allreduce_([x, x.copy()], **more)):
            x = mx.nd.ones(2)
            with pytest.raises((TypeError, ValueError, mx.base.MXNetError)):
                call(x, **{"name": "left alone", "prescale_factor": 10.0, **options})
            assert np.array_equal(x.asnumpy(), np.ones(2)), options
    x, sparse = mx.nd.ones(2), mx.nd.ones((2, 2)).tostype("row_sparse")
    for others in ([sparse], [3.0], [mx.nd.ones(2, dtype="int32")]):
        with pytest.raises((TypeError, ValueError)):
            bps.grouped_allreduce_([x, *others], name="left alone", prescale_factor=10.0)
        assert np.array_equal(x.asnumpy(), np.ones(2))
    for call in (bps.allreduce, bps.allreduce_):
        for value in (3.0, np.ones(2), [x], None):
            with pytest.raises(TypeError, match="NDArray"):
                call(value, prescale_factor=2.0)
    # What is not refused is scaled.
    assert bps.allreduce_(x, name="left alone", op=bps.Sum, prescale_factor=10.0, postscale_factor=0.5) is x
    assert np.array_equal(x.asnumpy(), np.full(2, 10.0))


def _refused_arguments_use_no_number() -> None:
    """The same of what is wrong with a reduction, a root, splits, or a member of a group."""
    bps.init()
    rank = bps.rank()
    alone = bps.add_process_set([rank])
    x, whole, flags = mx.nd.ones((2, 3)), mx.nd.ones((2, 3), dtype="int32"), mx.nd.ones((2, 3), dtype="bool")
    sparse = x.tostype("row_sparse")
    pair = {"process_set": bps.ProcessSet([0, 1])}
    groups = (bps.grouped_allreduce, bps.grouped_allreduce_, bps.grouped_allgather, bps.grouped_reducescatter)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (bps.push_pull, (whole,), {"op": bps.Adasum}),
        (bps.push_pull, (flags,), {}),
        (bps.push_pull_inplace, (x,), {"op": bps.ReduceOp.BitAnd}),
        (bps.allreduce, (flags,), {}),
        (bps.allreduce_, (whole,), {"prescale_factor": 2.0}),
        (bps.broadcast, (x, 2), {}),
        (bps.broadcast, (x, 1 - rank), {"process_set": alone}),
        (bps.broadcast_, (x, 1 - rank), {"process_set": alone}),
        (bps.reducescatter, (flags,), {}),
        (bps.reducescatter, (x,), {"op": bps.ReduceOp.BitOr}),
        (bps.reducescatter, (x,), {"prescale_factor": "half"}),
        (bps.alltoall, (x, [3, -1]), {}),
        (bps.alltoall, (x, [1, 0]), {}),
        (bps.alltoall, (x, [1, 1, 0]), {}),
        (bps.alltoall, (mx.nd.ones((3, 3)),), {}),
        *((call, ([x, sparse],), {}) for call in groups),
        *((call, ([x],), {"priority": 1.5}) for call in groups),
        *((call, ([x],), pair) for call in groups),
        (bps.grouped_allreduce, ([x, flags],), {}),
        (bps.grouped_allreduce_, ([x, whole],), {"postscale_factor": 2.0}),
        (bps.grouped_reducescatter, ([x, flags],), {}),
    ]
    for call, arguments, options in calls:
        if rank == 0:
            with pytest.raises((TypeError, ValueError, mx.base.MXNetError)):
                found = call(*arguments, **options)
                mx.nd.waitall()
                np.array(found)
        if call in groups:
            call([x.copy(), x.copy()])[1].asnumpy()
        else:
            call(x.copy(), *([1] if "broadcast" in call.__name__ else [])).asnumpy()


def _refused_optimizers_use_no_number() -> None:
    bps.init()
    sgd = mx.optimizer.create("sgd")
    weight = mx.gluon.Parameter("weight", shape=(2,))
    weight.initialize()
    if bps.rank() == 0:
        with pytest.raises(ValueError, match="does not know"):
            bps.DistributedOptimizer(sgd, process_set=bps.ProcessSet([0, 1]))
        for params, options in (({"weight": 1}, {}), ({"weight": weight}, {"root_rank": 2})):
            with pytest.raises(ValueError, match=r"root_rank|Parameter"):
                bps.DistributedTrainer(params, "sgd", **options)
    assert bps.DistributedOptimizer(sgd)._name == "gradient"
    assert bps.DistributedTrainer({"weight": weight}, "sgd")._prefix == ""


def _inputs_that_fail() -> None:
    """What computes rank 1's input fails in some steps: all hear so, and the next step is whole."""
    bps.init()
    rank = bps.rank()
    operations: dict[str, tuple[Callable[[mx.nd.NDArray], mx.nd.NDArray], float]] = {
        "push_pull": (lambda x: bps.push_pull(x, average=False, name="failing sum"), 3),
        "broadcast": (lambda x: bps.broadcast(x, 1, name="failing broadcast"), 2),
        "allgather": (lambda x: bps.allgather(x, name="failing rows"), 1),
        "reducescatter": (lambda x: bps.reducescatter(x, op=bps.Sum, name="failing parts"), [3, 0][rank]),
    }
    for step in range(8):
        # Of a matrix that is not positive definite potrf fails, when the engine runs it.
        failing = step in (1, 2, 4) and rank == 1
        matrix = mx.nd.array([[1, 2], [2, 1]] if failing else [[(1 + rank) ** 2, 0], [0, 1]])
        for kind, (run, expected) in operations.items():
            given = mx.nd.linalg.potrf(matrix) * 10**step
            if step in (1, 2, 4):
                match = "potrf" if rank == 1 else "rank 1 .* gave up: what computes its input has failed"
                with pytest.raises(mx.base.MXNetError, match=match):
                    run(given).asnumpy()
                _clear()
            else:
                assert run(given).asnumpy()[0, 0] == expected * 10**step, (kind, step)


def _clear() -> None:
    """The engine has told all errors."""
    for _ in range(10):
        try:
            mx.nd.waitall()
            return
        except mx.base.MXNetError:
            pass
    raise AssertionError("there is one error more each time")


BODIES = [
    _all_dtypes_and_ops,
    _inputs_that_fail,
    _bfloat16,
    _numpy_interface,
    _dependencies,
    _one_name_at_once,
    _many_at_once,
    _gradients,
    _gradients_are_added_up,
    _gradient_of_a_broadcast,
    _gradient_of_a_broadcast_of_plain_arrays,
    _gradient_of_a_broadcast_in_shutdown,
    _compressed,
    _mismatches,
    _wrong_arguments,
    _refused_calls_use_no_number,
    _refused_arrays_are_left_alone,
    _refused_optimizers_use_no_number,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_refused_arguments_use_no_number(run_workers: RunWorkers) -> None:
    run_workers(_refused_arguments_use_no_number, BYTEPS_OP_TIMEOUT="20")


def test_one_thread_of_the_engine(run_workers: RunWorkers) -> None:
    run_workers(_many_at_once, MXNET_CPU_WORKER_NTHREADS="1", MXNET_CPU_PRIORITY_NTHREADS="1")


def test_the_naive_engine(run_workers: RunWorkers) -> None:
    run_workers(_dependencies, MXNET_ENGINE_TYPE="NaiveEngine")


def _without_a_session() -> None:
    given = mx.nd.ones(2)
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.allreduce_(given, name="x", prescale_factor=10.0)
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.grouped_allreduce_([given], name="x", prescale_factor=10.0)
    assert np.array_equal(given.asnumpy(), np.ones(2))
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.push_pull(mx.nd.ones((3,)), name="x")
    bps.init()
    weight = mx.gluon.Parameter("weight", shape=(3,))
    weight.initialize()
    trainer = bps.DistributedTrainer({"weight": weight}, "sgd", {"learning_rate": 0.1})

    def step() -> None:
        with mx.autograd.record():
            loss = (weight.data() ** 2).sum()
        loss.backward()
        trainer.step(1)
        weight.data().wait_to_read()

    step()
    bps.shutdown()
    with pytest.raises((ValueError, mx.base.MXNetError), match=r"bps\.init\(\)"):
        step()
    bps.init()
    step()


def test_before_init_and_after_shutdown(run_alone: RunWorkers) -> None:
    run_alone(_without_a_session)


def _missing() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:
        with pytest.raises(mx.base.MXNetError) as raised:
            bps.push_pull(mx.nd.ones((3,)), name="lonely").asnumpy()
        message = str(raised.value)
    bps.barrier("the end", timeout=60)
    return message


def test_who_is_missing(run_workers: RunWorkers) -> None:
    message = run_workers(_missing, BYTEPS_OP_TIMEOUT="4").results[0]
    assert "lonely" in message and "1" in message, message


def _peer_dies() -> None:
    import os

    bps.init()
    bps.push_pull(mx.nd.ones((3,)), name="x").asnumpy()
    if bps.rank() == 1:
        os._exit(0)  # so that the other's exit status is the job's
    with pytest.raises(mx.base.MXNetError, match="rank 1") as raised:
        bps.push_pull(mx.nd.ones((3,)), name="x").asnumpy()
    print(f"heard: {raised.value}", flush=True)
    raise raised.value


def test_a_dead_peer_is_an_error(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False)
    assert job.returncode != 0, job.output
    assert "heard: " in job.stdout, job.output


def _failed_and_not_waited_for(ending: str) -> None:
    import sys

    bps.init()
    ones = mx.nd.ones((2 + bps.rank(),))
    if ending == "a step":
        weight = mx.gluon.Parameter("weight", shape=(1,))
        weight.initialize()
        trainer = bps.DistributedTrainer({"weight": weight}, "sgd")
        with mx.autograd.record():
            loss = (weight.data() * ones).sum()
        loss.backward()
        bps.push_pull_inplace(ones, name="m")
        weight.grad()[:] = ones[:1]
        trainer.step(1)
        return
    reduced = bps.push_pull(ones, name="m")
    if ending == "handled":
        with pytest.raises(mx.base.MXNetError, match="disagree"):
            (reduced + 1).wait_to_read()
    elif ending == "sys.exit(3)":
        sys.exit(3)


@pytest.mark.parametrize("ending, code", [("", 1), ("a step", 1), ("sys.exit(3)", 3), ("handled", 0)])
def test_the_exit_status_tells_of_what_nobody_has_waited_for(run_workers: RunWorkers, ending: str, code: int) -> None:
    job = run_workers(_failed_and_not_waited_for, ending, options=("--verbose",), check=False)
    assert job.returncode == code, job.output
    for rank in range(2):
        assert f"worker {rank}: exited with code {code} after" in job.stderr, job.output
        told = f"[worker {rank}] byteps: an operation has failed that the program has not waited for:" in job.stderr
        assert told == (f"[worker {rank}] mxnet.base.MXNetError" in job.stderr) == (code != 0), job.output
