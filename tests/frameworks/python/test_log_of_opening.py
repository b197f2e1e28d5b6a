"""BYTEPS_LOG_LEVEL=debug tells the whole story of one opening, step by step, in lines that name what they are about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import byteps
from jobs import JobResult

# In the order in which they come.
_STEPS = (
    r'open: BytePS \d+\.\d+\.\d+, ABI \d+\.\d+, session "", worker host 0 of 1, local rank 0 of 2, 1 servers',
    r"configuration: .*DMLC_NUM_SERVER=1 \(environment\).*BYTEPS_LOG_LEVEL=debug \(environment\)",
    r"loading the transport plugin /.*/libbyteps_transport_tcp\.so",
    r"transport plugin tcp \S+ is loaded",
    r"provider tcp of libfabric .*, address 127\.0\.0\.1:\d+",
    r"loading the scheduler plugin /.*/libbyteps_scheduler_credit\.so",
    r"scheduler plugin credit \S+ is loaded",
    r'coordinator at 127\.0\.0\.1:\d+, job ".+"; this worker is at 127\.0\.0\.1 \(host ".+", pid \d+\)',
    r"registered as member \d+ of session \d+",
    r"connecting to server 0 \(host .+, pid \d+\) at 127\.0\.0\.1:\d+",
    r"scheduler credit, .*partitions of at most \d+ bytes",
    r'member \d+ is worker rank 1 \(host ".+", 127\.0\.0\.1, pid \d+\), reached by tcp',
    r'member \d+ is server 0 \(host ".+", 127\.0\.0\.1, pid \d+\), reached by tcp',
    r"rank [01] of 2; stages: servers",
    r"the link to server 0 \(host .+, pid \d+\), lane 0, is up over tcp after \d+ us",
    r"ready: rank [01] of 2, every link is up",
)


def _open() -> None:
    byteps.init()


def test_of_a_job(run_workers: Callable[..., JobResult]) -> None:
    job = run_workers(
        _open,
        BYTEPS_LOG_LEVEL="debug",
        BYTEPS_FORCE_DISTRIBUTED="1",
        BYTEPS_TRANSPORT="tcp",
        BYTEPS_SHM="0",
        BYTEPS_JOB_TOKEN="not for the log",
    )
    lines = [line for line in job.output.splitlines() if line.startswith("[worker 0]")]
    rest = iter(lines)
    for step in _STEPS:
        assert any(re.search(step, line) for line in rest), f"{step} is not there, or not in its place:\n" + job.output
    assert "not for the log" not in job.output


def test_of_links_within_the_host(run_workers: Callable[..., JobResult]) -> None:
    servers = run_workers(_open, BYTEPS_LOG_LEVEL="debug", BYTEPS_FORCE_DISTRIBUTED="1", servers=2).output
    for server in range(2):
        link = rf"the link to server {server} \(host .+, pid \d+\), lane 0, is up over shm after \d+ us"
        assert re.search(rf"\[worker 0\].*{link}", servers), servers
    neighbours = run_workers(_open, BYTEPS_LOG_LEVEL="debug", servers=0).output
    link = r"the link to rank 1 \(worker, host .+, pid \d+\), lane 0, is up over shm after \d+ us"
    assert re.search(rf"\[worker 0\].*{link}", neighbours), neighbours


def test_of_a_worker_alone(run_alone: Callable[..., Any]) -> None:
    output = run_alone(_open, BYTEPS_LOG_LEVEL="debug").output
    assert re.search(r"open: BytePS .*configuration: .*ready: rank 0 of 1, alone", output, re.DOTALL), output
    assert "open:" not in run_alone(_open, BYTEPS_LOG_LEVEL="info").output
