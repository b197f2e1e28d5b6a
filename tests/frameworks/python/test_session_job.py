"""Jobs of several workers, without any framework: who we are, what is waited for, and who has died."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import byteps
import pytest
from native_push import push_pull_doubles

RunWorkers = Callable[..., Any]


def _until(condition: Callable[[], object], what: str) -> None:
    """Waits for what comes by itself, at a time of its own."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def _who() -> tuple[int, ...]:
    byteps.init()
    request, memory = push_pull_doubles("x", [1.0, byteps.rank()])
    request.wait()
    assert list(memory) == [byteps.size(), sum(range(byteps.size()))]
    assert request.test()
    assert request.state == "done"
    byteps.barrier()
    info = byteps.info()
    assert info.transport
    assert info.scheduler
    return byteps.rank(), byteps.size(), byteps.local_rank(), byteps.local_size(), info.num_servers


def test_who_we_are(run_workers: RunWorkers) -> None:
    assert run_workers(_who, workers=3, servers=2).results == [(rank, 3, rank, 3, 2) for rank in range(3)]


def _transport() -> tuple[str, bool]:
    byteps.init()
    return byteps.info().transport, byteps.info().shared_buffers


@pytest.mark.parametrize(
    ("servers", "variables", "name", "shared"),
    [
        (0, {}, r"shm \(shm\)", True),
        (1, {}, r"\w+ \([\w;-]+\) between hosts, shm within", True),
        (1, {"BYTEPS_SHM": "0"}, r"\w+ \([\w;-]+\)", False),
    ],
)
def test_what_carries_the_tensors(
    run_workers: RunWorkers, servers: int, variables: dict[str, str], name: str, shared: bool
) -> None:
    for transport, buffers in run_workers(_transport, servers=servers, **variables).results:
        assert re.fullmatch(name, transport), transport
        assert buffers == shared


def _lives() -> None:
    def resources() -> list[int]:
        return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]

    before: list[int] = []
    for generation in range(1, 101):
        byteps.init()
        assert byteps.info().generation == generation
        request, memory = push_pull_doubles("x", [float(generation)])
        request.wait()
        assert list(memory) == [2.0 * generation]
        byteps.shutdown()
        if generation == 10:
            before = resources()
    assert resources()[0] <= before[0], "open files"
    # A thread that was joined may be listed for a moment more.
    _until(lambda: resources()[1] <= before[1], "threads")


def test_many_lives(run_workers: RunWorkers) -> None:
    run_workers(_lives)


def _sum_of_job(number: float) -> list[float]:
    byteps.init()
    memory: Any = None
    for _ in range(50):
        request, memory = push_pull_doubles("the same name", [number] * 1000)
        request.wait()
    byteps.barrier()
    return list(memory[:2])


def test_two_jobs_at_once(run_workers: RunWorkers) -> None:
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(run_workers, _sum_of_job, float(number)) for number in (1, 10)]
        assert [job.result().results for job in jobs] == [[[2.0, 2.0]] * 2, [[20.0, 20.0]] * 2]


def _dropped_requests() -> None:
    """Requests that are not waited for: their memory must stay until the library is through with it, and no longer."""
    byteps.init()
    memory = None
    if byteps.rank() == 0:
        memory = weakref.ref(push_pull_doubles("dropped", [1.0] * 10_000)[1])
        gc.collect()
        assert memory() is not None, "the other rank has not begun: the library still reads it"
        byteps.barrier()
    else:
        byteps.barrier()
        request, sums = push_pull_doubles("dropped", [2.0] * 10_000)
        request.wait()
        assert list(sums) == [3.0] * 10_000
    for _ in range(10):
        request, sums = push_pull_doubles("kept", [1.0])
        request.wait()
        assert list(sums) == [2.0]
    # Its result and those of the others may come over different lanes.
    _until(lambda: gc.collect() >= 0 and (memory is None or memory() is None), "kept for ever")


def test_dropped_requests(run_workers: RunWorkers) -> None:
    run_workers(_dropped_requests)


def _cancelled() -> str:
    byteps.init()
    if byteps.rank() == 0:
        # Large: its cancel ends when the servers know of it, and the other rank cannot come before.
        request, _ = push_pull_doubles("given up", [1.0] * 100_000)
        while True:
            with pytest.raises(byteps.DeadlineExceededError, match=r'had not ended after 250 ms: .*"given up"') as told:
                request.wait(0.25)  # the wait ends, the operation goes on
            if "is pushed" in str(told.value):  # At first it may not be that far.
                break
        assert " is active: no answer from server 0 " in str(told.value)
        assert "it goes on until its own deadline" in str(told.value)
        assert not request.test()
        request.cancel()
        with pytest.raises(byteps.CancelledError):
            request.wait()
        byteps.barrier("given up")
        return ""
    byteps.barrier("given up")
    request, _ = push_pull_doubles("given up", [1.0] * 100_000)
    with pytest.raises(byteps.AbortedError) as raised:
        request.wait()
    return str(raised.value)


def test_cancel(run_workers: RunWorkers) -> None:
    message = run_workers(_cancelled).results[1]
    assert "given up" in message
    assert "rank 0" in message


def _shutdown_while_others_wait() -> None:
    """Threads that wait for what will never come are woken by shutdown(), with an error."""
    byteps.init()
    rank = byteps.rank()
    woken: list[BaseException] = []
    ready = threading.Barrier(3)

    def wait(call: Callable[[], object]) -> None:
        ready.wait()
        try:
            call()
        except BaseException as error:
            woken.append(error)

    request, _ = push_pull_doubles(f"only on rank {rank}", [1.0])
    calls = (request.wait, lambda: byteps.barrier(f"only on rank {rank}"))
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    ready.wait()
    byteps.barrier("both have begun")
    start = time.monotonic()
    with pytest.raises(byteps.BytePSError):
        byteps.shutdown(timeout=0.5)
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert time.monotonic() - start < 10
    assert len(woken) == 2
    assert all(isinstance(error, byteps.BytePSError) for error in woken), woken
    assert not byteps.is_initialized()


def test_shutdown_while_others_wait(run_workers: RunWorkers) -> None:
    run_workers(_shutdown_while_others_wait)


def _killed(folder: str) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # bpslaunch ends the job; that is not what is tested here
    byteps.init()
    byteps.barrier()
    if byteps.rank() == 1:
        push_pull_doubles("the last", [1.0] * 100_000)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(byteps.UnavailableError) as first:
        for turn in range(1_000_000):
            request, _ = push_pull_doubles(f"round {turn % 2}", [1.0] * 100_000)
            request.wait()
    with open(f"{folder}/rank{byteps.rank()}", "w") as file:
        file.write(f"{time.monotonic() - start:.1f} {first.value}")
    assert not first.value.retryable
    # Every later call fails at once, with the same cause.
    start = time.monotonic()
    for call in (lambda: push_pull_doubles("x", [1.0]), byteps.barrier):
        with pytest.raises(byteps.UnavailableError) as later:
            call()
        assert "rank 1" in str(later.value)
    assert time.monotonic() - start < 10
    assert byteps.info().failed
    assert byteps.rank() in (0, 2)
    start = time.monotonic()
    with pytest.raises(byteps.BytePSError):
        byteps.shutdown()
    assert time.monotonic() - start < 10
    return "in order"


def test_a_worker_is_killed(run_workers: RunWorkers, tmp_path: Any) -> None:
    job = run_workers(_killed, str(tmp_path), workers=3, options=("--kill-after", "120"), check=False)
    assert job.returncode == 128 + signal.SIGKILL, job.output
    assert job.results == ["in order", None, "in order"], job.output
    for rank in (0, 2):
        assert "rank 1" in (tmp_path / f"rank{rank}").read_text(), job.output


def _raises(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # bpslaunch ends the job; that is not what is tested here
    byteps.init()
    byteps.barrier()
    if byteps.rank() == 1:
        raise RuntimeError("a mistake of one rank")
    with pytest.raises(byteps.UnavailableError) as error:
        request, _ = push_pull_doubles("never complete", [1.0])
        request.wait()
    Path(folder, "heard").write_text(str(error.value))


@pytest.mark.parametrize("servers", [0, 1])
def test_a_worker_raises(run_workers: RunWorkers, tmp_path: Any, servers: int) -> None:
    """It leaves in order, and those that still need it hear that."""
    job = run_workers(_raises, str(tmp_path), servers=servers, options=("--kill-after", "120"), check=False)
    assert job.returncode == 1, job.output
    assert "RuntimeError: a mistake of one rank" in job.stderr
    heard = (tmp_path / "heard").read_text()
    assert "worker rank 1" in heard and "has left the session before the others" in heard


def _leaves_last(folder: str, needs_them: bool) -> None:
    byteps.init()
    request, output = push_pull_doubles("needs everybody", [1.0] * 100_000)
    request.wait()
    assert output[0] == byteps.size()
    rank, others = byteps.rank(), byteps.size() - 1
    if rank != 0:
        # No other rank comes: no error of the one that leaves.
        byteps.shutdown(timeout=0.5)
        Path(folder, f"left{rank}").touch()
        return
    # As one that writes a checkpoint after all others have gone.
    _until(lambda: len(list(Path(folder).glob("left*"))) == others, "the others stay")
    assert not byteps.info().failed
    if needs_them:
        with pytest.raises(byteps.UnavailableError, match=r"worker rank [12] .*has left the session before the others"):
            push_pull_doubles("needs everybody", [1.0] * 100_000)[0].wait()
        return
    byteps.shutdown()


@pytest.mark.parametrize("servers", [0, 1])
def test_the_last_one_needs_nobody(run_workers: RunWorkers, tmp_path: Any, servers: int) -> None:
    job = run_workers(_leaves_last, str(tmp_path), False, servers=servers)
    assert "fail" not in job.stderr.lower(), job.output


@pytest.mark.parametrize("servers", [0, 1])
def test_the_last_one_still_needs_the_others(run_workers: RunWorkers, tmp_path: Any, servers: int) -> None:
    run_workers(_leaves_last, str(tmp_path), True, workers=3, servers=servers)


def _wrong_timeout() -> None:
    byteps.init()
    rank = byteps.rank()
    if rank == 1:
        for wrong in (-1, float("nan"), "soon"):
            with pytest.raises((TypeError, ValueError)):
                byteps.shutdown(wrong)  # type: ignore[arg-type]
            assert byteps.is_initialized()
    byteps.barrier()
    request, sums = push_pull_doubles("still together", [1.0 + rank])
    request.wait()
    assert list(sums) == [3.0]
    byteps.shutdown()


def test_shutdown_with_a_wrong_argument_is_none(run_workers: RunWorkers) -> None:
    run_workers(_wrong_timeout)


@pytest.mark.parametrize("servers", [0, 1])
def test_an_unknown_scheduler(run_workers: RunWorkers, servers: int) -> None:
    """With and without servers the wrong name is what is wrong."""
    job = run_workers(_left_out, servers=servers, check=False, BYTEPS_SCHEDULER="nope")
    assert job.returncode != 0
    assert '"nope"' in job.stderr and "BYTEPS_PLUGIN_PATH" in job.stderr
    assert "start a server" not in job.stderr


@pytest.mark.parametrize("servers", [0, 1])
def test_an_unknown_transport(run_workers: RunWorkers, servers: int) -> None:
    """Also where nothing needs it: processes of one host meet in shared memory."""
    job = run_workers(_left_out, servers=servers, check=False, BYTEPS_TRANSPORT="nope")
    assert job.returncode != 0
    assert '"nope"' in job.stderr and "BYTEPS_PLUGIN_PATH" in job.stderr


def test_unknown_names_of_a_worker_alone(run_alone: RunWorkers) -> None:
    for knob in ("BYTEPS_TRANSPORT", "BYTEPS_SCHEDULER"):
        job = run_alone(_left_out, check=False, **{knob: "nope"})
        assert job.returncode == 1
        assert '"nope"' in job.stderr and "BYTEPS_PLUGIN_PATH" in job.stderr


def _left_out() -> None:
    byteps.init()


def test_nobody_else_comes(run_alone: RunWorkers) -> None:
    """A worker of two, and no coordinator: the wait ends with the address it waited for."""
    job = run_alone(
        _left_out,
        check=False,
        DMLC_ROLE="worker",
        DMLC_NUM_WORKER="2",
        DMLC_NUM_SERVER="1",
        DMLC_WORKER_ID="0",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT="1",
        BYTEPS_START_TIMEOUT="2",
    )
    assert job.returncode == 1
    assert "DeadlineExceededError" in job.stderr
    assert "127.0.0.1:1" in job.stderr
