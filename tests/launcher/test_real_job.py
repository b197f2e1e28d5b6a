"""Whole jobs with the real library, coordinator and servers, on the real transport."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import sys
import time

import pytest
from launching import BPSLAUNCH, TRAINER, Launch, Spawn, Start, free_port, wait_until

SMALL = "1000"
LARGE = "1000000"  # float32: several partitions


def pid_of(launch: Launch, name: str) -> int:
    """The process id of one of the job's processes, as `--verbose` told it."""
    found = re.search(rf"^bpslaunch: {name}: pid (\d+)", launch.stderr, re.MULTILINE)
    assert found is not None, launch.stderr
    return int(found.group(1))


def wait_for_rounds(launch: Launch) -> None:
    """Until some more rounds have ended than now."""
    launch.wait_for("round", launch.stdout.count("round") + 6)


@pytest.mark.parametrize("workers, servers, forced", [(2, 1, "1"), (3, 2, "1"), (3, 2, "0"), (1, 1, "0"), (4, 0, "0")])
@pytest.mark.parametrize("elements", ["0", "1", LARGE])
def test_sums(start: Start, real: dict[str, str], workers: int, servers: int, forced: str, elements: str) -> None:
    words = ["--workers", str(workers), "--servers", str(servers), "--", *TRAINER, "5", elements]
    launch = start(*words, variables={**real, "BYTEPS_FORCE_DISTRIBUTED": forced})
    assert launch.wait() == 0, launch.stderr
    assert launch.stderr == "", "quiet: progress and errors only"
    for rank in range(workers):
        assert f"[worker {rank}] rank {rank} of {workers}, local {rank} of {workers}" in launch.stdout
        assert f"[worker {rank}] done" in launch.stdout


@pytest.mark.parametrize(
    "servers, variables, stages",
    [
        ("0", {}, "local"),
        # Servers that nobody insists on have nothing to sum ...
        ("1", {}, "local"),
        ("1", {"BYTEPS_FORCE_DISTRIBUTED": "1"}, "servers"),
        # ... unless the workers cannot do without.
        ("1", {"BYTEPS_LOCAL_REDUCE": "0"}, "servers"),
    ],
)
def test_the_way_of_a_tensor_is_told(
    start: Start, real: dict[str, str], servers: str, variables: dict[str, str], stages: str
) -> None:
    told = {**real, **variables, "PS_VERBOSE": "1", "BYTEPS_LOG_LEVEL": "info"}
    launch = start("--workers", "2", "--servers", servers, "--", *TRAINER, "1", SMALL, variables=told)
    assert launch.wait() == 0, launch.stderr
    for rank in range(2):
        said = rf"rank {rank} of 2; stages: {stages}\b.*; groups of the reduction: 0-1$"
        assert re.search(said, launch.stderr, re.MULTILINE), launch.stderr
    idle = "the servers have nothing to sum (BYTEPS_FORCE_DISTRIBUTED=1 sends all tensors through them)"
    assert (idle in launch.stderr) == (servers == "1" and stages == "local")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small /dev/shm")
@pytest.mark.parametrize("servers, forced", [("0", "0"), ("1", "1")])
def test_a_small_dev_shm_is_enough(spawn: Spawn, real: dict[str, str], servers: str, forced: str) -> None:
    """As in a container: here it holds one page, which is taken."""
    small = 'mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && exec "$@"'
    words = [*BPSLAUNCH, "--workers", "2", "--servers", servers, "--", *TRAINER, "3", LARGE]
    launch = spawn(
        *["unshare", "--mount", "--propagation", "private", "sh", "-c", small, "sh", *words],
        variables={**real, "BYTEPS_FORCE_DISTRIBUTED": forced},
    )
    assert launch.wait() == 0, launch.stderr
    for rank in range(2):
        assert f"[worker {rank}] done" in launch.stdout


def test_one_worker_alone(start: Start, real: dict[str, str]) -> None:
    launch = start(*TRAINER, "3", LARGE, variables=real)
    assert launch.wait() == 0, launch.stderr
    assert "[worker 0] rank 0 of 1, local 0 of 1" in launch.stdout
    assert launch.stderr == ""


def test_a_plain_process_is_a_job_of_one(spawn: Spawn, real: dict[str, str]) -> None:
    launch = spawn(*TRAINER, "3", SMALL, variables=real)
    assert launch.wait() == 0, launch.stderr
    assert "rank 0 of 1" in launch.stdout


@pytest.mark.parametrize("forced", ["0", "1"])
@pytest.mark.parametrize("name", ["worker 1", "server 0", "coordinator"])
def test_killed_in_the_middle(start: Start, real: dict[str, str], name: str, forced: str) -> None:
    variables = {**real, "BYTEPS_FORCE_DISTRIBUTED": forced}
    launch = start("--verbose", "--workers", "3", "--servers", "2", "--", *TRAINER, "0", LARGE, variables=variables)
    launch.wait_for("round 3", 3)
    began = time.monotonic()
    os.kill(pid_of(launch, name), signal.SIGKILL)
    assert launch.wait() == 137
    assert time.monotonic() - began < 10
    assert f"bpslaunch: {name} (pid " in launch.stderr and "was killed by SIGKILL" in launch.stderr
    if name == "server 0" and forced == "0":
        return  # It had nothing to sum: nobody misses it.
    # Those who are left have had the time to say whom they miss.
    survivors = [worker for worker in ("worker 0", "worker 1", "worker 2") if worker != name]
    for worker in survivors:
        assert re.search(rf"^\[{worker}\] error 14: .*{name.split()[0]}", launch.stderr, re.MULTILINE), worker


def test_ctrl_c_in_the_middle(start: Start, real: dict[str, str]) -> None:
    launch = start("--workers", "2", "--", *TRAINER, "0", LARGE, variables=real)
    launch.wait_for("round 3", 2)
    launch.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert launch.wait() == 130
    assert time.monotonic() - began < 10
    assert launch.stderr == "bpslaunch: SIGINT: ending the job\n"


@pytest.mark.parametrize("servers, shm", [("0", "1"), ("1", "1"), ("1", "0")])
def test_two_jobs_at_once(start: Start, real: dict[str, str], servers: str, shm: str) -> None:
    """With the same variables, each with the token that bpslaunch makes for it; trainers check every sum."""
    # Of whole jobs on this host each has a port of its own, whatever some other job was told.
    variables = {**real, "BYTEPS_SHM": shm, "DMLC_PS_ROOT_PORT": str(free_port())}
    if servers != "0":
        variables["BYTEPS_FORCE_DISTRIBUTED"] = "1"
    endless = start("--workers", "2", "--servers", servers, "--", *TRAINER, "0", LARGE, variables=variables)
    endless.wait_for("round 1", 2)
    other = start("--workers", "2", "--servers", "2", "--", *TRAINER, "20", LARGE, variables=variables)
    assert other.wait() == 0, other.stderr
    assert other.stdout.count("done") == 2 and other.stderr == ""
    wait_for_rounds(endless)
    endless.process.terminate()
    assert endless.wait() == 143
    assert endless.stderr == "bpslaunch: SIGTERM: ending the job\n"


def test_two_jobs_at_one_port(start: Start, real: dict[str, str]) -> None:
    """Of two that are started at the same time one ends at once, and names the port; the other works on."""
    port = str(free_port())
    words = ["--workers", "2", "--servers", "1", "--port", port, "--", *TRAINER, "0", LARGE]
    began = time.monotonic()
    jobs = [start(*words, variables=real) for _ in range(2)]
    wait_until(lambda: any(job.process.poll() is not None for job in jobs), lambda: "both go on")
    refused, first = sorted(jobs, key=lambda job: job.process.poll() is None)
    assert time.monotonic() - began < 20
    assert refused.wait() == 1
    remedy = "another --port, or none for a free one"
    assert refused.stderr == f"bpslaunch: cannot listen at 127.0.0.1:{port}: Address already in use; {remedy}\n"
    assert refused.stdout == ""
    wait_for_rounds(first)
    first.process.terminate()
    assert first.wait() == 143
    assert first.stderr == "bpslaunch: SIGTERM: ending the job\n"


def test_a_wrong_server_setting_is_told(start: Start, real: dict[str, str]) -> None:
    variables = {**real, "BYTEPS_SERVER_ENGINE_THREAD": "many"}
    launch = start("--workers", "2", "--servers", "1", "--", *TRAINER, "1", SMALL, variables=variables)
    assert launch.wait() not in (0, 137, 143)
    assert "BYTEPS_SERVER_ENGINE_THREAD=many" in launch.stderr


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("BYTEPS_JOB_ID", "other", "BYTEPS_JOB_ID=other"),
        ("BYTEPS_JOB_TOKEN_FILE", "TOKEN", "BYTEPS_JOB_TOKEN"),
        ("DMLC_RANK", "7", "DMLC_RANK=7 is not between -1 and 0"),
    ],
)
def test_a_server_that_is_refused_ends_the_job(
    start: Start, real: dict[str, str], tmp_path: pathlib.Path, name: str, value: str, words: str
) -> None:
    """Nobody waits for it until the start times out."""
    token = tmp_path / "token"
    token.write_text("another")
    server = tmp_path / "server"
    server.write_text(
        f"#!/bin/sh\n[ $DMLC_ROLE = server ] && export {name}={value.replace('TOKEN', str(token))}\n"
        f"exec {real['BYTEPS_SERVER_BINARY']}\n"
    )
    server.chmod(0o755)
    variables = {**real, "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_SERVER_BINARY": str(server)}
    began = time.monotonic()
    launch = start("--workers", "2", "--servers", "1", "--", *TRAINER, "2", SMALL, variables=variables)
    assert launch.wait() not in (0, 137, 143)
    assert time.monotonic() - began < 30
    assert words in launch.stderr


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_servers_under_gdb_end_in_order(start: Start, real: dict[str, str]) -> None:
    """The SIGTERM at the end is for the programs, and not for the debuggers around them."""
    command = [str(pathlib.Path(sys.executable).resolve()), *TRAINER[1:], "2", SMALL]
    variables = {**real, "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_ENABLE_GDB": "1"}
    launch = start("--workers", "2", "--servers", "1", "--", *command, variables=variables)
    assert launch.wait() == 0, launch.stdout + launch.stderr
    for name in ("coordinator", "server 0", "worker 0", "worker 1"):
        assert re.search(rf"^\[{name}\] \[Inferior 1 .* exited normally\]", launch.stdout, re.MULTILINE), launch.stdout
