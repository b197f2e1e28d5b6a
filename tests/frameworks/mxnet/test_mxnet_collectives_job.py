"""The operations of Horovod's MXNet part over three workers: allgather, alltoall, reducescatter, process sets, Adasum,
join, and the errors on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

mx = framework("mxnet")

import byteps.horovod.mxnet as hvd
import byteps.mxnet as bps
import numpy as np
from jobs import Outcomes, clean_environment, launcher_command, run_job

_SIZE = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of three workers that has run all bodies."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="120")
    folder = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(_SIZE, 1), _SIZE, BODIES, (), environment, check=False))


def _same(found: mx.nd.NDArray, expected: object) -> None:
    np.testing.assert_array_equal(found.asnumpy(), expected)


def _own(rows: int, rank: int) -> np.ndarray:
    return (np.arange(rows * 2) + 100 * rank).reshape(rows, 2).astype("float32")


def _allreduce() -> None:
    bps.init()
    rank = bps.rank()
    x = mx.nd.array([1.0, 2.0]) * (rank + 1)
    _same(bps.allreduce(x), [2, 4])
    _same(bps.allreduce(x, average=False, prescale_factor=0.5, postscale_factor=4.0), [12, 24])
    for found in bps.grouped_allreduce([x, x + 1], op=bps.Max):
        assert found.shape == (2,)
    mine = [x.copy(), x.copy()]
    assert bps.grouped_allreduce_(mine, op=bps.Sum, name="g")[0] is mine[0]
    _same(mine[1], [6, 12])
    with pytest.raises(ValueError, match="cannot be scaled"):
        bps.allreduce(mx.nd.array([1], dtype="int32"), prescale_factor=2.0)
    with pytest.raises(ValueError, match="both op and average"):
        bps.allreduce(x, average=True, op=bps.Sum)


def _rows() -> None:
    bps.init()
    rank = bps.rank()
    rows = (1, 2, 3)
    everything = np.concatenate([_own(rows[of], of) for of in range(_SIZE)])
    _same(bps.allgather(mx.nd.array(_own(rows[rank], rank))), everything)
    for found in bps.grouped_allgather([mx.nd.array(_own(rows[rank], rank))] * 2):
        _same(found, everything)
    x = mx.nd.arange(14).reshape((7, 2)) * (rank + 1)
    own = np.arange(14.0).reshape(7, 2)[[slice(0, 3), slice(3, 5), slice(5, 7)][rank]]
    _same(bps.reducescatter(x), own * 2)
    _same(bps.reducescatter(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0), own * 12)
    _same(bps.grouped_reducescatter([x], op=bps.Max)[0], own * 3)
    _same(bps.alltoall(mx.nd.array([10 * rank + to for to in range(_SIZE)])), [10 * of + rank for of in range(_SIZE)])
    splits = [to + 1 for to in range(_SIZE)]
    for given in (splits, mx.nd.array(splits, dtype="int32")):
        found, came = bps.alltoall(mx.nd.ones((6,)) * rank, given)
        _same(came, [rank + 1] * _SIZE)
        _same(found, np.repeat([0, 1, 2], rank + 1))
    _same(bps.alltoall(mx.np.ones((3,)) * rank, name="of numpy"), [0, 1, 2])
    assert type(bps.allgather(mx.np.ones((1,)))[:]) is mx.np.ndarray
    few = bps.reducescatter(mx.np.ones((2, 2)), op=bps.Sum, name="few")  # none for the last
    assert few.asnumpy().tolist() == [[3.0, 3.0]] * (rank < 2)
    assert bps.allgather_object({"rank": rank}) == [{"rank": of} for of in range(_SIZE)]
    with pytest.raises(ValueError, match="one entry"):
        bps.alltoall(x, [])
    whole = mx.nd.array([[1], [2], [3]], dtype="int32")
    for factors in ({"prescale_factor": 0.5}, {"postscale_factor": 0.5}):
        with pytest.raises(ValueError, match="cannot be scaled"):
            bps.reducescatter(whole, op=bps.Sum, **factors)
        with pytest.raises(ValueError, match="cannot be scaled"):
            bps.grouped_reducescatter([whole], op=bps.Sum, **factors)
    _same(bps.reducescatter(whole, op=bps.Sum), [[3 * (rank + 1)]])


def _nobody_waits_for_rows() -> None:
    """Whoever calls goes on: the last rank begins when the others have been through their calls."""
    bps.init()
    rank = bps.rank()
    x = mx.nd.ones((rank + 1, 2)) * rank

    def start() -> list[mx.nd.NDArray]:
        found = [bps.allgather(x, name="own")]
        found += [bps.allgather(x * 2, name=f"late {index}") for index in range(20)]
        found += bps.alltoall(mx.nd.ones((_SIZE,)) * rank, [1] * _SIZE, name="late")
        return [*found, bps.reducescatter(mx.nd.ones((_SIZE,)), op=bps.Sum, name="late sum") * 2]

    started = start() if rank != _SIZE - 1 else []
    if started:
        x[:] = 7  # what was sent is what was there
    bps.barrier()
    started = started or start()
    everything = np.concatenate([np.full((of + 1, 2), 2.0 * of) for of in range(_SIZE)])
    _same(started.pop(0), everything / 2)
    for late in started[:10]:
        _same(late, everything)
        assert type(late) is mx.nd.NDArray
    _same(mx.nd.concat(*started[10:20], dim=0), np.concatenate([everything] * 10))  # as operands
    _same(started[-3], [0, 1, 2])
    _same(started[-2], [1, 1, 1])
    _same(started[-1], [6])
    bps.allgather(mx.nd.ones((1,)), name="of no use")
    mx.nd.waitall()


def _process_sets() -> None:
    outer = bps.ProcessSet([2, 0])
    bps.init(process_sets=[outer])
    rank = bps.rank()
    mine = outer if rank != 1 else bps.add_process_set([1])
    x = mx.nd.array([1.0, 2.0]) * (rank + 1)
    total = np.array([1.0, 2.0]) * (4 if rank != 1 else 2)
    _same(bps.allreduce(x, op=bps.Sum, process_set=mine), total)
    _same(bps.push_pull(x, name="mean", process_set=mine), total / mine.size())
    in_place = x.copy()
    bps.allreduce_(in_place, op=bps.Sum, name="in place", process_set=mine)
    _same(in_place, total)
    root = 2 if rank != 1 else 1
    _same(bps.broadcast(x, root, process_set=mine), np.array([1.0, 2.0]) * (root + 1))
    assert bps.broadcast_(x, root, process_set=mine) is x
    _same(x, np.array([1.0, 2.0]) * (root + 1))
    _same(bps.allgather(mx.nd.ones((1,)) * rank, process_set=mine), [0, 2] if rank != 1 else [1])
    with pytest.raises(ValueError, match="does not know"):
        bps.allreduce(x, process_set=bps.ProcessSet([0, 1]))


def _gradient_over_a_set() -> None:
    bps.init()
    everyone_else = bps.add_process_set([bps.rank()])
    x = mx.nd.ones((2,))
    x.attach_grad()
    with mx.autograd.record():
        y = (bps.push_pull(x, average=False, name="d", process_set=everyone_else) * (bps.rank() + 1)).sum()
    y.backward()
    _same(x.grad, [bps.rank() + 1] * 2)


def _training_outside_of_the_process_set() -> None:
    """All ranks give the same set. Rank 1 is not in it: it keeps its parameters, and takes its own gradients, divided
    by the size of the set."""
    bps.init()
    rank = bps.rank()
    outer = bps.add_process_set([0, 2])
    change = -(2 * 1.0 + 2 * 3.0) / 2 if rank != 1 else -2 * 2.0 / 2
    for kind in (bps.DistributedTrainer, hvd.DistributedTrainer):
        for contexts in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
            layer = mx.gluon.nn.Dense(1, in_units=1, use_bias=False, prefix="outside_")
            layer.initialize(mx.init.Constant(10.0 * rank), ctx=contexts)
            trainer = kind(layer.collect_params(), "sgd", {"learning_rate": 1.0}, process_set=outer)

            def step(
                layer: Any = layer, contexts: Any = contexts, trainer: Any = trainer, ignore: bool = False
            ) -> list[float]:
                share = 2 * (rank + 1) / len(contexts)
                with mx.autograd.record():
                    losses = [layer(mx.nd.full((1, 1), share, ctx=context)) for context in contexts]
                mx.autograd.backward(losses)
                trainer.step(1, ignore_stale_grad=ignore)
                return [float(data.asscalar()) for data in layer.weight.list_data()]

            start = 0.0 if rank != 1 else 10.0
            assert step() == [start + change] * len(contexts)
            assert step(ignore=True) == [start + 2 * change] * len(contexts)
    weight = mx.nd.zeros(1)
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0), process_set=outer)
    optimizer.update(0, weight, mx.nd.full(1, 2.0 * (rank + 1)), None)
    _same(weight, [change])


def _adasum_and_join() -> None:
    bps.init()
    own = mx.nd.one_hot(mx.nd.array([bps.rank()]), _SIZE)[0]
    np.testing.assert_allclose(bps.allreduce(own, op=bps.Adasum).asnumpy(), np.ones(_SIZE), rtol=1e-6)
    for step in range(bps.rank() + 1):
        _same(bps.allreduce(mx.nd.ones((2,)), op=bps.Sum, name="x"), [_SIZE - step] * 2)
    assert bps.join() == _SIZE - 1


def _disagreement() -> None:
    bps.init()
    dtype = "float32" if bps.rank() == 0 else "int32"
    late = bps.allgather(mx.nd.zeros((2,), dtype=dtype), name="x")
    for _ in range(2):  # whenever it is used
        with pytest.raises(mx.base.MXNetError, match="do not agree"):
            late.wait_to_read()
    rows, splits = bps.alltoall(mx.nd.zeros((3,), dtype=dtype), splits=mx.nd.array([1, 1, 1], dtype="int32"), name="z")
    with pytest.raises(mx.base.MXNetError, match="do not agree"):
        rows.wait_to_read()
    with pytest.raises(mx.base.MXNetError, match="z: nothing has come"):  # MXNet tells an error once
        splits.wait_to_read()
    scattered = bps.reducescatter(mx.nd.zeros((3,), dtype=dtype), op=bps.Sum, name="y")
    with pytest.raises(mx.base.MXNetError, match="do not agree"):
        scattered.wait_to_read()
    _same(bps.allgather(mx.nd.ones((1,)) * bps.rank(), name="x"), [0, 1, 2])


BODIES = [
    _allreduce,
    _rows,
    _nobody_waits_for_rows,
    _process_sets,
    _gradient_over_a_set,
    _training_outside_of_the_process_set,
    _adasum_and_join,
    _disagreement,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
