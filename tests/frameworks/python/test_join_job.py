"""Join in real processes: workers with different amounts of data, through servers and within one host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import call, native

RunWorkers = Callable[..., Any]

MODES = [
    pytest.param(2, 0, {}, id="two on one host"),
    pytest.param(4, 0, {}, id="four on one host"),
    pytest.param(3, 2, {"BYTEPS_FORCE_DISTRIBUTED": "1"}, id="through servers"),
    pytest.param(3, 1, {"BYTEPS_SHM": "0", "BYTEPS_TRANSPORT": "tcp"}, id="over tcp"),
]


def _uneven(epochs: int = 3, most: int = 6) -> list[int]:
    """Rank r has r + 1 steps more than rank 0 in even epochs, and fewer in odd ones."""
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    odds = native().process_set(list(range(size)))
    lasts = []
    for epoch in range(epochs):
        steps = [most + each if epoch % 2 == 0 else most + size - each for each in range(size)]
        for step in range(steps[rank]):
            active = [each for each in range(size) if step < steps[each]]
            for count in (1, 700, 200_000):
                array = np.full(count, rank + 1, dtype=np.float32)
                total = sum(each + 1 for each in active)
                # A tensor that those without data never had: each step has names of its own.
                result = byteps.push_pull(array, name=f"own.{epoch}.{step}.{count}", average=False)
                assert (result == total).all()
                assert (byteps.push_pull(array, average=False) == total).all()
                result = byteps.push_pull(array, name=f"shared.{count}", average=True)
                assert (result == np.float32(total) / np.float32(size)).all()
                scattered = call(_native.REDUCE_SCATTER, f"shared.{count}", array)
                assert (scattered == total).all()
                scaled = call(_native.ALL_REDUCE, f"scaled.{count}", array, scale=(2.0, 0.5))
                assert (scaled == total).all()
                of_set = call(_native.REDUCE, "set", array, process_set=odds, root=max(active))
                assert rank != max(active) or (of_set == total).all()
        lasts.append(byteps.join())
        # At once, without waiting for the others to have come out of join().
        assert (byteps.push_pull(np.ones(3, dtype=np.float32), name="between", average=False) == size).all()
        assert (byteps.push_pull(np.ones(3, dtype=np.float32), average=False) == size).all()
        assert byteps.broadcast_object(rank, 1) == 1
    byteps.shutdown()
    return lasts


@pytest.mark.parametrize(("workers", "servers", "variables"), MODES)
def test_workers_out_of_data_count_as_zeros(
    run_workers: RunWorkers, workers: int, servers: int, variables: dict[str, str]
) -> None:
    results = run_workers(_uneven, workers=workers, servers=servers, **variables).results
    assert all(result == results[0] for result in results)
    # Who has least cannot be the last: the others have reduced with it joined.
    assert results[0][0] != 0
    assert results[0][1] != workers - 1


def _refused() -> None:
    byteps.init()
    rank = byteps.rank()
    ones = np.ones(10, dtype=np.float32)
    if rank == 0:
        assert byteps.join() in (1, 2)
    else:
        for begin in (
            lambda: byteps.broadcast(ones, 0, name="b"),
            lambda: byteps.push_pull(ones, name="m", op=byteps.Max),
            lambda: call(_native.ALL_GATHER, "g", ones),
            lambda: call(_native.ALL_TO_ALL, "a", ones[:9]),
            lambda: call(_native.SEND, None, ones, peer=0),
            lambda: call(_native.RECEIVE, None, ones, peer=0),
        ):
            with pytest.raises(byteps.BytePSError, match=r"rank 0 .*has joined") as caught:
                begin()
            assert caught.value.retryable, caught.value
        with pytest.raises(byteps.FailedPreconditionError, match=r"rank 0 .*has joined"):
            byteps.barrier()
        assert (byteps.push_pull(ones, name="m", average=False) == 2).all()
        assert byteps.join() in (1, 2)
    byteps.barrier()
    assert (byteps.broadcast(np.full(10, rank, dtype=np.float32), 2, name="b") == 2).all()
    assert call(_native.ALL_GATHER, "g", ones).shape == (30,)
    byteps.shutdown()


def _joins_at_once_behind_operations() -> list[int]:
    """The last rank's operations are its library's to submit still when it joins; the others have joined before."""
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    lasts = []
    for each in range(20):
        started = []
        if rank == size - 1:
            array = np.ones(500_000, dtype=np.float32)
            started.append(byteps.push_pull_async(array, name=f"large.{each}", average=False))
            started.append(byteps.push_pull_async(array, name="again", average=False))
        lasts.append(byteps.join(timeout=60))
        for operation in started:
            assert (operation.wait() == 1).all()
    byteps.shutdown()
    return lasts


@pytest.mark.parametrize("servers", [0, 1])
def test_operations_right_before_the_join(run_workers: RunWorkers, servers: int) -> None:
    results = run_workers(_joins_at_once_behind_operations, workers=3, servers=servers, BYTEPS_OP_TIMEOUT="60").results
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("servers", [0, 1])
def test_what_has_no_result_with_zeros_is_an_error(run_workers: RunWorkers, servers: int) -> None:
    run_workers(_refused, workers=3, servers=servers)


def _waiting(said: Path) -> None:
    byteps.init()
    rank = byteps.rank()
    if rank == 1:
        with pytest.raises(byteps.DeadlineExceededError, match=r"not joined by rank 0"):
            byteps.join(timeout=0.5)
        with pytest.raises(byteps.FailedPreconditionError, match="this rank has joined"):
            byteps.push_pull(np.ones(1), name="late")
        said.touch()
        # It stays joined: this waits on.
        byteps.join()
    else:
        result = byteps.push_pull(np.ones(1), name="early", average=False)
        assert result == 1
        deadline = time.monotonic() + 100
        while not said.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        byteps.join()
    assert byteps.push_pull(np.ones(1), name="late", average=False) == 2
    byteps.shutdown()


def test_a_deadline_names_who_has_not_joined(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_waiting, tmp_path / "said", workers=2)


def test_a_worker_alone_is_the_last(run_alone: Callable[..., Any]) -> None:
    run_alone(_alone)


def _alone() -> None:
    byteps.init()
    assert byteps.join() == 0
    assert byteps.push_pull(np.ones(1), name="w") == 1
    assert byteps.join() == 0
    byteps.shutdown()
