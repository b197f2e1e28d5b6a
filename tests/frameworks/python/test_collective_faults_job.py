"""A worker is killed in the middle of each kind of collective, of a join and of a group: the others get an error that
names it, and nothing hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import native, operation, start

RunWorkers = Callable[..., Any]

VICTIM = 1
ROUNDS = 3  # before the victim dies in the one that follows
COLLECTIVES = {
    "all_reduce": _native.ALL_REDUCE,
    "broadcast": _native.BROADCAST,
    "all_gather": _native.ALL_GATHER,
    "reduce_scatter": _native.REDUCE_SCATTER,
    "all_to_all": _native.ALL_TO_ALL,
    "reduce": _native.REDUCE,
    "gather": _native.GATHER,
    "scatter": _native.SCATTER,
    "send": _native.SEND,
    "barrier": _native.BARRIER,
}
KINDS = (*COLLECTIVES, "adasum", "group", "sparse", "join")


def _begin(kind: str, array: np.ndarray) -> _native.Request:
    rank, size = byteps.rank(), byteps.size()
    if kind == "group":
        parts = [operation(_native.ALL_REDUCE, "g0", array), operation(_native.ALL_TO_ALL, "g1", array)]
        return native().group(parts, buffers=(array,))
    if kind == "adasum":
        return start(_native.ALL_REDUCE, "adasum", array, op=_native.ADASUM)
    if kind == "send":
        # Every rank sends to the next and receives from the one before.
        sent = start(_native.SEND, None, array, peer=(rank + 1) % size)
        start(_native.RECEIVE, None, array, peer=(rank - 1) % size).wait()
        return sent
    return start(COLLECTIVES[kind], kind, array, root=0)


def _turn(kind: str, array: np.ndarray) -> None:
    if kind == "sparse":
        byteps.sparse_push_pull(np.arange(0, 60_000, 2), array[:30_000].reshape(-1, 1), 90_000, name="rows")
    elif kind == "join":
        if byteps.rank() == 0:
            byteps.join()
        byteps.push_pull(array, name="w")
    else:
        _begin(kind, array).wait()


def _killed(kind: str, folder: str) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # bpslaunch ends the job; that is not what is tested here
    byteps.init()
    array = np.ones(3_000_000 if kind != "barrier" else 0, dtype=np.float32)
    # A join has no rounds that all end.
    for _ in range(0 if kind == "join" else 2 * ROUNDS):
        _turn(kind, array)
    byteps.barrier()
    if byteps.rank() == VICTIM:
        # In the middle of it, sooner or later.
        threading.Timer(0.002 * len(kind) if kind != "join" else 0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(byteps.UnavailableError) as caught:
        for _ in range(1_000_000):
            _turn(kind, array)
    assert f"rank {VICTIM}" in str(caught.value), caught.value
    assert not caught.value.retryable
    began = time.monotonic()
    with pytest.raises(byteps.UnavailableError, match=f"rank {VICTIM}"):
        byteps.push_pull(np.ones(1), name="later")
    assert time.monotonic() - began < 30
    Path(folder, f"rank{byteps.rank()}").touch()
    with pytest.raises(byteps.BytePSError):
        byteps.shutdown()
    return "in order"


def _run(run_workers: RunWorkers, tmp_path: Path, kind: str, **variables: str) -> None:
    job = run_workers(
        _killed,
        kind,
        str(tmp_path),
        workers=3,
        options=("--kill-after", "120"),
        check=False,
        BYTEPS_OP_TIMEOUT="200",
        **variables,
    )
    assert job.returncode == 128 + signal.SIGKILL, job.output
    assert job.results == ["in order", None, "in order"], job.output
    assert (tmp_path / "rank0").exists()
    assert (tmp_path / "rank2").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_killed_in_the_middle(run_workers: RunWorkers, tmp_path: Path, kind: str) -> None:
    _run(run_workers, tmp_path, kind, servers=0)


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_to_all", "reduce", "join"])
def test_the_same_from_worker_to_worker_over_tcp(run_workers: RunWorkers, tmp_path: Path, kind: str) -> None:
    _run(run_workers, tmp_path, kind, servers=1, BYTEPS_SHM="0", BYTEPS_COLLECTIVE_PATH="peers")


def _one_of_a_group_fails() -> str:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    ones = np.ones(1000, dtype=np.float32)
    texts = []
    # Through servers or shared memory and from worker to worker, in one group; another member of it each time.
    kinds = (_native.ALL_REDUCE, _native.ALL_GATHER, _native.BROADCAST, _native.REDUCE_SCATTER)
    for wrong in range(len(kinds)):
        parts = []
        for index, kind in enumerate(kinds):
            array = ones[:999] if index == wrong and rank == 2 and kind != _native.ALL_GATHER else ones
            if index == wrong and rank == 2 and kind == _native.ALL_GATHER:
                array = ones.astype(np.float64)
            parts.append(operation(kind, f"p{index}", array))
        with pytest.raises(byteps.FailedPreconditionError, match="rank 2") as caught:
            native().group(parts, buffers=(ones,)).wait()
        texts.append(str(caught.value))
        byteps.barrier()
        # The session, and the names, go on; one that another rank gave up early may say so once.
        native().group([operation(kind, f"q{wrong}.{index}", ones) for index, kind in enumerate(kinds)], (ones,)).wait()
    assert size == 3
    byteps.shutdown()
    return texts[0]


@pytest.mark.parametrize("servers", [0, 1])
def test_one_member_of_a_group_fails(run_workers: RunWorkers, servers: int) -> None:
    results = run_workers(_one_of_a_group_fails, workers=3, servers=servers, BYTEPS_OP_TIMEOUT="100").results
    assert all("1000" in text and "999" in text for text in results), results
