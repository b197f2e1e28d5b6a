"""init, shutdown and who we are, for one worker alone."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import byteps
import pytest
from byteps import _native
from byteps.session import current_session
from jobs import clean_environment


@pytest.mark.parametrize(
    "call",
    [
        byteps.rank,
        byteps.size,
        byteps.local_rank,
        byteps.local_size,
        byteps.info,
        byteps.barrier,
        lambda: byteps.broadcast_object(1),
    ],
)
def test_before_init(call: Callable[[], object]) -> None:
    assert not byteps.is_initialized()
    with pytest.raises(ValueError, match=r"call bps\.init\(\) first") as raised:
        call()
    assert isinstance(raised.value, byteps.BytePSError)
    assert raised.value.code == byteps.StatusCode.FAILED_PRECONDITION


def test_one_worker_alone(alone: None) -> None:
    assert byteps.is_initialized()
    assert (byteps.rank(), byteps.size(), byteps.local_rank(), byteps.local_size()) == (0, 1, 0, 1)
    info = byteps.info()
    assert (info.rank, info.size, info.num_servers, info.failed) == (0, 1, 0, False)
    assert not info.shared_buffers
    byteps.barrier()
    assert byteps.broadcast_object({"a": [1, 2]}) == {"a": [1, 2]}


def test_pinned_memory_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setenv("BYTEPS_DEVICE", "absent")
    with byteps.open_session(name="pins") as session, pytest.raises(byteps.NotFoundError, match='device "absent"'):
        session.buffer(4096, pinned=0)
    assert bytes(byteps.buffer(4, pinned=None)) == b"\0\0\0\0"


def test_init_again_is_nothing(alone: None) -> None:
    byteps.init()
    byteps.init(lazy=False)
    assert byteps.size() == 1
    with pytest.raises(ValueError, match="initialized already"):
        byteps.init(transport="tcp")


def test_shutdown_again_is_nothing(alone: None) -> None:
    byteps.shutdown()
    byteps.shutdown()
    assert not byteps.is_initialized()
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        byteps.rank()


def test_root_that_is_no_rank(alone: None) -> None:
    for root in (-1, 1):
        with pytest.raises(ValueError, match=f"root_rank is {root}"):
            byteps.broadcast_object(1, root_rank=root)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeouts_are_positive(alone: None, timeout: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        byteps.barrier(timeout=timeout)


def test_a_name_is_not_cut_short(alone: None) -> None:
    with pytest.raises(ValueError, match="NUL"):
        current_session().native.declare("a\0b", _native.FLOAT32, [1])


def test_wrong_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_FORCE_DISTRIBUTED", "1")
    monkeypatch.setenv("DMLC_NUM_SERVER", "1")
    with pytest.raises(byteps.NotFoundError, match="no-such-transport"):
        byteps.init(transport="no-such-transport", coordinator="127.0.0.1:1", timeout=1)
    assert not byteps.is_initialized()


def _resources() -> tuple[int, int, int]:
    """Open files, threads, and resident kilobytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    files, threads = (len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))
    return files, threads, resident


def test_a_hundred_lives() -> None:
    def live() -> None:
        byteps.init()
        assert byteps.broadcast_object("x" * 10000, name="same name") == "x" * 10000
        byteps.shutdown()

    for _ in range(10):
        live()
    gc.collect()
    growth = []
    for _ in range(2):
        before = _resources()
        for _ in range(100):
            live()
        gc.collect()
        # A thread that was joined may be listed for a moment more.
        deadline = time.monotonic() + 60
        while (after := _resources())[1] > before[1] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert after[0] <= before[0], "open files"
        assert after[1] <= before[1], "threads"
        growth.append(after[2] - before[2])
    # What leaks grows each time; what the allocator or the kernel keeps for the next time (2 MB at once, where it makes
    # huge pages) grows once.
    assert min(growth) < 1024, f"kilobytes of memory: {growth}"


def test_sessions_side_by_side() -> None:
    """Below the one session of init() there can be as many as one likes."""
    library = byteps.library.LIBRARY
    sessions = [library.open(name=f"session {number}") for number in range(3)]
    buffer = bytearray(b"abcd")
    for session in sessions:
        assert session.info()["size"] == 1
        _push_pull(session, buffer).wait()
    for session in sessions:
        session.shutdown()
        session.close()
        with pytest.raises(byteps.FailedPreconditionError, match="shut down"):
            session.info()
        with pytest.raises(byteps.FailedPreconditionError, match="shut down"):
            _push_pull(session, buffer)
        session.shutdown()
        session.close()
    assert buffer == b"abcd"


def _push_pull(session: _native.Session, buffer: bytearray) -> _native.Request:
    import ctypes

    view = (ctypes.c_uint8 * len(buffer)).from_buffer(buffer)
    address = ctypes.addressof(view)
    return session.push_pull("tensor", _native.UINT8, (len(buffer),), address, address, _native.SUM, buffers=view)


def test_calls_from_many_threads(alone: None) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(50):
                assert byteps.broadcast_object((number, turn), name=f"thread {number}") == (number, turn)
                assert byteps.rank() == 0
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not failures


@pytest.mark.parametrize("died", [False, True])
def test_an_exception_leaves_at_once(monkeypatch: pytest.MonkeyPatch, died: bool) -> None:
    """At the end of Python the others are waited for, unless an exception has ended it."""
    timeouts = []
    monkeypatch.setattr(byteps.session.CURRENT, "close", lambda timeout: timeouts.append(timeout))
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(sys, "last_value", RuntimeError() if died else None, raising=False)
    byteps.session.close_at_exit()
    assert timeouts == [0.001 if died else None]


def test_what_neither_says_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "perhaps")
    with pytest.raises(byteps.InvalidArgumentError, match="BYTEPS_ENABLE_ASYNC=perhaps is not accepted"):
        byteps.init()
    assert not byteps.is_initialized()


# A follower of the session, as frameworks' bindings are, that knows of a failed operation.
_UNTOLD = """
import atexit, os, sys
atexit.register(print, "what was registered before runs")
import byteps, byteps.session
class Engine:
    def attach(self, native): pass
    def leave(self): raise RuntimeError("the operation has failed")
    def detach(self, native): pass
byteps.session.CURRENT.follow(Engine())
byteps.init()
sys.stdout.write("not flushed, ")
"""


@pytest.mark.parametrize(
    "ending, code",
    [
        ("", 1),
        ("sys.exit()", 1),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("atexit.register(os._exit, 4)", 4),
        # Python and the C library end the child as they do any program.
        ("import ctypes; atexit.unregister(byteps.session.close_at_exit); byteps.session.close_at_exit()\n"
         "child = os.fork()\n"
         "if child == 0: ctypes.CDLL(None).exit(0)\n"
         "print(os.waitpid(child, 0)[1])", 1),
    ],
)  # fmt: skip
def test_a_failure_that_is_told_at_exit_changes_the_exit_status(ending: str, code: int) -> None:
    program = [sys.executable, "-c", _UNTOLD + ending]
    ended = subprocess.run(program, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("RuntimeError: the operation has failed" in ended.stderr) == (code != 4 and "raise" not in ending)
    if code != 4:
        forked = "0\n" if "fork" in ending else ""
        assert ended.stdout == f"not flushed, {forked}what was registered before runs\n"
