"""Ctrl-C ends a wait, whatever it waits for."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import byteps
from interrupts import interrupted
from native_push import push_pull_doubles

RunWorkers = Callable[..., Any]


def _during_init() -> None:
    with interrupted():
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
        with interrupted():
            request.wait()
        with interrupted():
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
