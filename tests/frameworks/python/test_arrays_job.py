"""Arrays without a framework, in jobs: sums, asyncio, several sessions, memory in flight."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from jobs import Outcomes

RunWorkers = Callable[..., Any]


def _sums() -> None:
    byteps.init()
    rank = byteps.rank()
    np.testing.assert_array_equal(byteps.push_pull(np.array([rank, 2.0])), [0.5, 2.0])
    values = np.full((100, 1000), rank + 1, "int64")
    assert byteps.push_pull(values, values, name="in place", average=False) is values
    assert (values == 3).all()
    np.testing.assert_array_equal(byteps.push_pull(np.array([rank == 0, False]), op=byteps.Max), [True, False])
    shared = np.frombuffer(byteps.buffer(80_000), "float32")
    shared[:] = 1
    byteps.push_pull(shared, shared, average=False)
    assert (shared == 2).all()
    np.testing.assert_array_equal(byteps.broadcast(np.full(5, rank), 1), np.ones(5))
    with pytest.raises(byteps.FailedPreconditionError, match='"apart"'):
        byteps.push_pull(np.ones(10 + rank), name="apart")
    operations = [byteps.push_pull_async(np.full(i, 1.0), name=f"t{i}", average=False) for i in range(1, 50)]
    for i, operation in enumerate(operations, 1):
        np.testing.assert_array_equal(operation.wait(), np.full(i, 2.0))
        assert operation.done()


def _asyncio() -> None:
    async def train() -> None:
        with byteps.open_session(name="async") as session:
            rank = session.info().rank
            # In opposite orders: tensors meet by name. While they travel the loop goes on.
            order = range(100) if rank == 0 else range(99, -1, -1)
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.ensure_future(tick())
            operations = [session.push_pull(np.full(i + 1, float(i)), name=f"t{i}", average=False) for i in order]
            for i, result in zip(order, await asyncio.gather(*operations)):
                np.testing.assert_array_equal(result, np.full(i + 1, 2.0 * i))
            for _ in range(100):
                assert (await session.push_pull(np.ones(3), name="again", average=False))[0] == 2
            assert ticks > 0
            ticking.cancel()
            # Two tasks await one operation, and one that has ended.
            operation = session.push_pull(np.ones(3), average=False)
            first, second = await asyncio.gather(operation, operation)
            assert first is second is await operation
            # An error comes out of await.
            with pytest.raises(byteps.FailedPreconditionError):
                await session.push_pull(np.ones(10 + rank), name="apart")
            # A timeout gives the operation up.
            large = np.ones(200_000)
            if rank == 0:
                operation = session.push_pull(large, name="given up")
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(operation, 0.2)
                with pytest.raises(byteps.CancelledError):  # the others know of it by then
                    await operation
                session.barrier()
            else:
                await asyncio.get_running_loop().run_in_executor(None, session.barrier)
                with pytest.raises(byteps.AbortedError):
                    await session.push_pull(large, name="given up")
            # Begun outside of any loop, awaited in one.
            begun: list[byteps.Operation] = []
            thread = threading.Thread(target=lambda: begun.append(session.push_pull(np.ones(3), name="outside")))
            thread.start()
            thread.join()
            assert (await begun[0])[0] == 1

    asyncio.run(train())
    asyncio.run(train())  # another loop


def _sessions() -> None:
    byteps.init()
    rank = byteps.rank()
    with byteps.open_session(name="first") as first, byteps.open_session(name="second") as second:
        assert (first.info().rank, second.info().size) == (rank, 2)
        # Of one name, in each of three sessions.
        operations = [
            session.push_pull(np.full(4, value), name="same", average=False)
            for session, value in ((first, 1.0), (second, 10.0 + rank))
        ]
        assert byteps.push_pull(np.full(4, 100.0), name="same", average=False)[0] == 200
        assert [operation.wait()[0] for operation in operations] == [2, 21]
    with pytest.raises(byteps.FailedPreconditionError):
        first.push_pull(np.ones(1))
    assert byteps.push_pull(np.ones(1), average=False)[0] == 2


def _held() -> None:
    """The memory of an operation that was dropped stays until it has ended, and cannot be resized."""
    byteps.init()
    size = 400_000
    if byteps.rank() == 0:
        values, grows = np.ones(size), bytearray(size)
        gone = weakref.ref(values)
        byteps.push_pull_async(values, values, name="dropped", average=False)
        byteps.push_pull_async(grows, grows, name="grows", average=False)
        del values
        gc.collect()
        assert gone() is not None
        with pytest.raises(BufferError):
            grows.extend(b"more")
        byteps.barrier()
        while gone() is not None:  # ended by BYTEPS_OP_TIMEOUT, if ever
            byteps.push_pull(np.ones(1), name="go on")
            gc.collect()
        byteps.push_pull(np.ones(1), name="end")
    else:
        byteps.barrier()
        assert (byteps.push_pull(np.full(size, 2.0), name="dropped", average=False) == 3).all()
        byteps.push_pull(np.zeros(size, "uint8"), name="grows", average=False)
        end = byteps.push_pull_async(np.ones(1), name="end")
        while not end.done():
            operation = byteps.push_pull_async(np.ones(1), name="go on")
            while not operation.done() and not end.done():
                pass
            if not operation.done():
                operation.cancel()


BODIES = [_sums, _asyncio, _sessions]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_dropped_operations(run_workers: RunWorkers) -> None:
    run_workers(_held)


def test_without_servers(run_workers: RunWorkers) -> None:
    run_workers(_asyncio, servers=0)
