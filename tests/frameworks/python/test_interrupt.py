"""Ctrl-C ends a wait, whatever it waits for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import byteps
import pytest
from native_push import push_pull_doubles

RunWorkers = Callable[..., Any]


@contextmanager
def _interrupted() -> Iterator[None]:
    """Sends SIGINT to this process a little later; KeyboardInterrupt must then come at once."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()
    # At once, on a loaded machine too: what is waited for takes 100 seconds and more.
    assert time.monotonic() - sent[0] < 10


def _during_init() -> None:
    with _interrupted():
        byteps.init()
    assert not byteps.is_initialized()


def test_during_init(run_alone: RunWorkers) -> None:
    run_alone(
        _during_init,
        DMLC_ROLE="worker",
        DMLC_NUM_WORKER="2",
        DMLC_NUM_SERVER="1",
        DMLC_WORKER_ID="0",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT="1",
        BYTEPS_START_TIMEOUT="100",
    )


def _during_operations() -> None:
    byteps.init()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if byteps.rank() == 0:
        request, memory = push_pull_doubles("late", [1.0])
        with _interrupted():
            request.wait()
        with _interrupted():
            byteps.barrier("never")
        byteps.barrier("go")
        request.wait()
        assert list(memory) == [2.0]
    else:
        byteps.barrier("go")
        request, memory = push_pull_doubles("late", [1.0])
        request.wait()
    byteps.barrier("never") if byteps.rank() == 1 else None


def test_during_operations(run_workers: RunWorkers) -> None:
    run_workers(_during_operations)
