"""Forked children: those that leave BytePS alone are undisturbed, the others get a clear error."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import byteps
import pytest
from jobs import clean_environment


def _in_child(body: Callable[[], None], fork: Callable[[], int] = os.fork) -> int:
    """The exit status of a forked child that ran `body`, its atexit functions and destructors included."""
    process = fork()
    if process == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        # As at the end of a program, but without pytest's own.
        byteps.session.close_at_exit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    deadline = time.monotonic() + 60
    while True:
        done, waited = os.waitpid(process, os.WNOHANG)
        if done == process:
            return os.waitstatus_to_exitcode(waited)
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)


def _expect_refusal(call: Callable[[], object]) -> None:
    try:
        call()
    except byteps.FailedPreconditionError as error:
        # The binding's own words; the library has others.
        assert "forked" in str(error) and "init()" in str(error), error
        assert not error.retryable
    else:
        raise AssertionError("the call worked")


def test_a_child_that_leaves_it_alone(alone: None) -> None:
    assert _in_child(lambda: None) == 0
    assert byteps.broadcast_object("the parent goes on") == "the parent goes on"


def test_a_child_that_uses_the_session(alone: None) -> None:
    native = byteps.session.current_session().native

    def body() -> None:
        assert not byteps.is_initialized()
        for call in (byteps.rank, byteps.barrier, lambda: byteps.broadcast_object(1), native.info, native.shutdown):
            _expect_refusal(call)
        byteps.shutdown()  # does nothing
        native.close()  # neither

    assert _in_child(body) == 0
    assert byteps.broadcast_object("the parent goes on") == "the parent goes on"


def test_a_child_with_a_session_of_its_own(alone: None) -> None:
    def grandchild() -> None:
        _expect_refusal(byteps.rank)
        byteps.shutdown()

    def body() -> None:
        byteps.init()
        assert byteps.broadcast_object("mine") == "mine"
        assert _in_child(grandchild) == 0
        assert byteps.broadcast_object("still mine") == "still mine"
        byteps.shutdown()
        # Now there is none, and not its parent's again.
        assert not byteps.is_initialized()
        with pytest.raises(byteps.NotInitializedError):
            byteps.rank()

    assert _in_child(body) == 0
    assert byteps.broadcast_object("the parent goes on") == "the parent goes on"


def test_a_child_that_was_forked_behind_python_s_back(alone: None) -> None:
    """As a library in C does it: Python's hooks do not run."""

    def body() -> None:
        assert not byteps.is_initialized()
        byteps.shutdown()  # does nothing
        byteps.init()
        assert byteps.broadcast_object("mine") == "mine"
        byteps.shutdown()

    assert _in_child(body, ctypes.PyDLL(None).fork) == 0
    assert byteps.broadcast_object("the parent goes on") == "the parent goes on"


def test_a_child_whose_session_was_opened_by_an_earlier_hook() -> None:
    """Hooks run in the order in which they were registered: this one before that of byteps."""
    code = """
import os
os.register_at_fork(after_in_child=lambda: byteps.init())
import byteps
byteps.init()
child = os.fork()
if child == 0:
    os._exit(0 if byteps.broadcast_object("mine") == "mine" else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True, timeout=60)


def test_a_child_that_drops_the_session() -> None:
    """A child's copy of a session ends without any effect on the parent's."""
    byteps.init()

    def body() -> None:
        byteps.session.CURRENT._inherited = None

    assert _in_child(body) == 0
    assert byteps.broadcast_object(1) == 1
    byteps.shutdown()


def test_a_child_of_a_process_that_is_in_the_middle(alone: None) -> None:
    """Forks while another thread of the parent is inside the library, and maybe holds its locks."""
    import threading

    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            byteps.broadcast_object("x" * 1000, name="busy")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            assert _in_child(lambda: _expect_refusal(byteps.rank)) == 0
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
