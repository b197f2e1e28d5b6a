"""Collectives of arrays without a framework, in jobs of two workers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from jobs import Outcomes


def _open() -> int:
    byteps.init()
    assert byteps.size() == 2
    return byteps.rank()


def _each_kind() -> None:
    rank = _open()
    equal = np.testing.assert_array_equal
    three = np.array([1.0, 2.0, 3.0])
    rows = byteps.allgather(np.full((rank + 1, 2), rank, "float32"), name="rows")
    equal(rows, [[0, 0], [1, 1], [1, 1]])
    assert rows.dtype == np.float32
    rows[0] = 7  # it is ours
    equal(byteps.alltoall(np.array([10 * rank, 10 * rank + 1])), [rank, 10 + rank])
    mine, counts = byteps.alltoall(three, ((1, 2), (3, 0))[rank])
    assert (len(mine), counts) == ((4, [1, 3]), (2, [2, 0]))[rank]
    equal(byteps.reducescatter(three, (1, 2), op=byteps.Sum), ([2], [4, 6])[rank])
    equal(byteps.reducescatter(np.arange(4.0)), ([0, 1], [2, 3])[rank])
    equal(byteps.allreduce(three, scale=(0.5, 4), average=False), [4, 8, 12])
    equal(byteps.allreduce(three, op=byteps.Adasum), three)
    reduced = byteps.reduce(three, 1, op=byteps.Product)
    assert reduced is None if rank == 0 else list(reduced) == [1, 4, 9]
    gathered = byteps.gather(three)
    assert gathered is None if rank == 1 else len(gathered) == 6
    equal(byteps.scatter(np.array([[5], [6], [7]][: 3 * (1 - rank)], "int8").reshape(-1, 1)), ([[5], [6]], [[7]])[rank])
    sent = [byteps.send_async(np.array([i, rank]), 1 - rank, 4) for i in range(3)]
    for i in range(3):
        equal(byteps.receive(np.empty(0, "int64"), 1 - rank, 4), [i, 1 - rank])
    for operation in sent:
        operation.wait()
    assert byteps.allgather(bytearray(b"ab")).tobytes() == b"abab"
    assert byteps.allgather(np.empty((0, 3))).shape == (0, 3)


def _sets_and_groups() -> None:
    rank = _open()
    alone = byteps.add_process_set([rank])
    np.testing.assert_array_equal(byteps.allgather(np.array([rank]), process_set=alone), [rank])
    np.testing.assert_array_equal(byteps.allreduce(np.array([7.0]), process_set=alone, name="t"), [7.0])
    group = byteps.Group()
    group.allreduce(np.full(100_000, 1.0), average=False)
    group.allgather(np.array([7 + rank], "int16"), name="rows")
    group.alltoall(np.array([1, 2]), [1, 1])
    total, rows, (mine, counts) = group.start().wait()
    assert (total == 2).all()
    assert list(rows) == [7, 8]
    assert (list(mine), counts) == ([rank + 1] * 2, [1, 1])
    group = byteps.Group()
    group.allgather(np.ones((1, 1 + rank)), name="apart")
    group.allreduce(np.ones(1))
    with pytest.raises((byteps.FailedPreconditionError, byteps.AbortedError)):
        group.start().wait()
    assert byteps.remove_process_set(alone)


def _sets_of_own_sessions() -> None:
    """Sets of a session of one's own: with and without that of init(), and never across."""
    equal = np.testing.assert_array_equal
    with byteps.open_session(name="first") as session:
        rank = session.info().rank
        alone = session.add_process_set([rank])
        assert (alone.size(), alone.rank(), alone.included(), alone.ranks) == (1, 0, True, [rank])
        other = session.add_process_set(byteps.ProcessSet([1 - rank]))
        assert other.included() is False
        with pytest.raises(ValueError, match=f"rank {rank} is not part of"):
            other.rank()
        with pytest.raises(byteps.BytePSError, match=f"this rank, {rank} is not in"):
            session.collective("allgather", np.ones(1), process_set=other).wait()
        equal(session.collective("allreduce", np.array([rank + 3.0]), process_set=alone).wait(), [rank + 3])
        equal(session.collective("allgather", np.array([rank]), process_set=byteps.global_process_set).wait(), [0, 1])
        group = session.group()
        group.allgather(np.array([rank, 9]), process_set=alone)
        group.reducescatter(np.array([5.0]), process_set=alone)
        rows, part = group.start().wait()
        equal(rows, [rank, 9])
        equal(part, [5])
        for again in ([rank], [0, 1]):
            with pytest.raises(ValueError, match="duplicate process set"):
                session.add_process_set(again)
        for wrong in ([], [2]):
            with pytest.raises(ValueError):
                session.add_process_set(wrong)

        byteps.init()
        own = byteps.add_process_set([rank])
        equal(byteps.allgather(np.array([7]), process_set=own), [7])
        with pytest.raises(ValueError, match="this session does not know"):
            session.collective("gather", np.ones(1), process_set=own)
        with pytest.raises(ValueError, match="the job does not know"):
            byteps.allgather(np.ones(1), process_set=alone)
        with pytest.raises(ValueError, match="duplicate process set"):
            byteps.add_process_set(alone)
        assert not byteps.remove_process_set(alone)
        assert not session.remove_process_set(own)

        assert session.remove_process_set(other)
        assert not session.remove_process_set(other)
        assert other.size() is None
        equal(session.collective("allreduce", np.array([8.0]), process_set=alone).wait(), [8])
    assert (alone.size(), alone.rank(), alone.included()) == (None, None, None)
    with byteps.open_session(name="next") as session:
        with pytest.raises(ValueError, match="this session does not know"):
            session.collective("allgather", np.ones(1), process_set=alone)
        session.add_process_set(alone)
        equal(session.collective("alltoall", np.array([4]), process_set=alone).wait(), [4])


def _asyncio() -> None:
    async def gather_all() -> None:
        with byteps.open_session(name="async") as session:
            rank = session.info().rank
            order = range(50) if rank == 0 else range(49, -1, -1)
            operations = [session.collective("allgather", np.full(i, rank), name=f"t{i}") for i in order]
            gc.collect()
            for i, result in zip(order, await asyncio.gather(*operations)):
                np.testing.assert_array_equal(result, [0] * i + [1] * i)

    _open()
    asyncio.run(gather_all())

    async def together() -> Any:
        group = byteps.Group()
        group.allgather(np.array([byteps.rank()]))
        return await group.start()

    assert list(asyncio.run(together())[0]) == [0, 1]


def _errors() -> None:
    rank = _open()
    with pytest.raises(byteps.FailedPreconditionError, match='"apart"'):
        byteps.allgather(np.ones((1, 1 + rank)), name="apart")
    with pytest.raises(NotImplementedError, match="Adasum"):
        byteps.reducescatter(np.ones(2), op=byteps.Adasum)
    with pytest.raises(ValueError, match="root_rank is 2"):
        byteps.gather(np.ones(2), 2)
    with pytest.raises(byteps.InvalidArgumentError, match="add up to"):
        byteps.alltoall(np.ones(3), [1, 1])
    with pytest.raises(TypeError):
        byteps.allgather("text")
    with byteps.open_session(name="second") as second, pytest.raises(ValueError, match="must be one of allgather"):
        second.collective("everything", np.ones(1))


def _refused_calls_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    rank = _open()
    pair = byteps.add_process_set([rank])
    floats, flags, whole = np.ones((2, 2), "float32"), np.ones(2, bool), np.ones(2, "int64")
    rows = np.arange(2)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (byteps.push_pull, (flags,), {}),
        (byteps.push_pull, (whole,), {"op": byteps.Adasum}),
        (byteps.push_pull, (floats,), {"priority": 1.5}),
        (byteps.push_pull, (floats,), {"timeout": -1}),
        (byteps.broadcast, (floats, 2), {}),
        (byteps.broadcast, (floats,), {"priority": "high"}),
        (byteps.broadcast, (floats,), {"timeout": "soon"}),
        (byteps.allreduce, (whole,), {"op": byteps.Adasum}),
        (byteps.allreduce, (flags,), {"op": byteps.Sum, "scale": (0.5, 1.0)}),
        (byteps.allreduce, (floats,), {"scale": "half"}),
        (byteps.reducescatter, (floats,), {"op": byteps.ReduceOp.BitOr}),
        (byteps.reducescatter, (floats, [3, 1]), {}),
        (byteps.reduce, (floats.astype("complex64"),), {"op": byteps.Max}),
        (byteps.reduce, (floats, 2), {}),
        (byteps.gather, (floats,), {"timeout": -1}),
        (byteps.gather, (floats, 1 - rank), {"process_set": pair}),
        (byteps.scatter, (floats, 0, [1, 2]), {}),
        (byteps.alltoall, (floats, [1, 1, 0]), {}),
        (byteps.alltoall, (floats, [3, -1]), {}),
        (byteps.alltoall, (np.ones(3),), {}),
        (byteps.allgather, (floats,), {"priority": 1.5}),
        (byteps.allgather, (floats,), {"wrong": 1}),
        (byteps.sparse_push_pull, (rows, floats, 1), {}),
        (byteps.sparse_push_pull, (rows, floats, "many"), {}),
        (byteps.sparse_push_pull, (rows, flags, 2), {}),
        (byteps.sparse_push_pull, (rows, floats, 2), {"timeout": -1}),
    ]
    right: dict[Callable[..., Any], tuple[Any, ...]] = {
        byteps.alltoall: (floats, [1, 1]),
        byteps.sparse_push_pull: (rows, floats, 2),
    }
    for call, arguments, options in calls:
        if rank == 0:
            with pytest.raises((TypeError, ValueError, byteps.BytePSError)):
                call(*arguments, **options)
        call(*right.get(call, (floats,)), timeout=20)


def _refused_members_use_no_number() -> None:
    rank = _open()
    group = byteps.Group()
    if rank == 0:
        for add, arguments, options in (
            (group.allreduce, (np.ones(2, "int64"),), {"op": byteps.Adasum}),
            (group.allreduce, (np.ones(2),), {"timeout": "soon"}),
            (group.alltoall, (np.ones(2), [3, -1]), {}),
        ):
            with pytest.raises((TypeError, ValueError)):
                add(*arguments, **options)
    group.allreduce(np.ones(2), timeout=20)
    group.alltoall(np.ones(2), timeout=20)
    group.start().wait()


BODIES = [
    _refused_calls_use_no_number,
    _refused_members_use_no_number,
    _each_kind,
    _sets_and_groups,
    _sets_of_own_sessions,
    _asyncio,
    _errors,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.strip("_"))
def test_job(outcomes: Outcomes, body: Any) -> None:
    outcomes.check(body)
