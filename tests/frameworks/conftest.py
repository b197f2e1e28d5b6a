"""Fixtures of the bindings' tests; jobs.py says how they are used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import JobResult, Outcomes, clean_environment, launcher_command, run_job


@pytest.fixture
def run_workers(tmp_path: Path) -> Callable[..., JobResult]:
    """run_workers(function, *arguments, workers=2, servers=1, options=(), check=True, **variables): the function in
    every worker of a job. `options` are those of bpslaunch. With `check`, the job must succeed."""

    def run(
        body: Callable[..., Any],
        *arguments: Any,
        workers: int = 2,
        servers: int = 1,
        options: tuple[str, ...] = (),
        check: bool = True,
        **variables: str | None,
    ) -> JobResult:
        launcher = launcher_command(workers, servers, *options)
        return run_job(tmp_path, launcher, workers, [body], arguments, clean_environment(**variables), check)

    return run


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of two workers and one server that has run the module's BODIES."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="120")
    folder = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(2, 1), 2, request.module.BODIES, (), environment, check=False))


@pytest.fixture
def run_bodies(tmp_path: Path) -> Callable[..., Outcomes]:
    """run_bodies(bodies, workers, servers): as `outcomes`, of a job of another size."""

    def run(bodies: list[Callable[[], Any]], workers: int, servers: int) -> Outcomes:
        environment = clean_environment(BYTEPS_OP_TIMEOUT="120")
        launcher = launcher_command(workers, servers)
        return Outcomes(run_job(tmp_path, launcher, workers, bodies, (), environment, check=False))

    return run


@pytest.fixture
def run_alone(tmp_path: Path) -> Callable[..., JobResult]:
    """run_alone(function, *arguments, check=True, **variables): the function in one process, without a job."""

    def run(body: Callable[..., Any], *arguments: Any, check: bool = True, **variables: str | None) -> JobResult:
        return run_job(tmp_path, [], 1, [body], arguments, clean_environment(**variables), check)

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
