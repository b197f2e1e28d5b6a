"""Fixtures of the bindings' tests; jobs.py says how they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import JobResult, clean_environment, run_job


@pytest.fixture
def run_workers(tmp_path: Path) -> Callable[..., JobResult]:
    """run_workers(function, *arguments, workers=2, servers=1, check=True, **variables): the function in every worker of
    a job. With `check`, the job must succeed."""

    def run(
        body: Callable[..., Any],
        *arguments: Any,
        workers: int = 2,
        servers: int = 1,
        check: bool = True,
        **variables: str | None,
    ) -> JobResult:
        launcher = [sys.executable, "-m", "byteps.launcher", "--workers", str(workers), "--servers", str(servers), "--"]
        return run_job(tmp_path, launcher, workers, body, arguments, clean_environment(**variables), check)

    return run


@pytest.fixture
def run_alone(tmp_path: Path) -> Callable[..., JobResult]:
    """run_alone(function, *arguments, check=True, **variables): the function in one process, without a job."""

    def run(body: Callable[..., Any], *arguments: Any, check: bool = True, **variables: str | None) -> JobResult:
        return run_job(tmp_path, [], 1, body, arguments, clean_environment(**variables), check)

    return run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the only worker of a job: init() before the test, shutdown() after it."""
    import byteps

    for key in os.environ:
        if key.startswith(("DMLC_", "BYTEPS_")) and key not in clean_environment():
            monkeypatch.delenv(key)
    byteps.init()
    yield
    byteps.shutdown()
