"""What users bring along: a virtual environment, a configuration of ssh, containers. By real ssh."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, TRAINER, Launch, Spawn, wait_until
from ssh_hosts import SshHosts

SMALL = "1000"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture
def launch(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    """Starts bpslaunch where the user sits."""

    def run(*words: str, ssh_args: str = hosts.ssh_args, variables: dict[str, str] | None = None) -> Launch:
        options = ["--ssh-args", ssh_args, "--hosts", "lh1,lh2", *words]
        return spawn(*hosts.here, *BPSLAUNCH, *options, variables={**real, **(variables or {})})

    yield run
    hosts.wait_empty()


def test_a_program_of_a_virtual_environment(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    """It is in the PATH that goes along, and not in that of the ssh daemon."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python-of-the-user").symlink_to(sys.executable)
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = ["--", "python-of-the-user", *TRAINER[1:], "1", SMALL]
    job = launch(*command, variables=variables)
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("done") == 2, job.stdout
    check = launch("--check", *command, variables=variables)
    assert check.wait() == 0 and "2 hosts ok" in check.stdout, check.stdout


def test_a_job_that_ends_beside_another_one_to_the_same_hosts(
    launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path
) -> None:
    """With ControlMaster the second job's connections would be those of the first, and end with it."""
    shared = tmp_path / "config"
    shared.write_text(hosts.config.read_text() + f"  ControlMaster auto\n  ControlPath {tmp_path}/%n\n")
    ssh_args = f"-F {shared}"
    first = launch("--", *TRAINER, "0", SMALL, ssh_args=ssh_args)
    first.wait_for("round 1", 2)
    second = launch("--", *TRAINER, "0", SMALL, ssh_args=ssh_args)
    second.wait_for("round 1", 2)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait(20) == 128 + signal.SIGTERM
    time.sleep(1)
    seen = second.stdout.count("round ")
    wait_until(lambda: second.stdout.count("round ") > seen + 2, lambda: second.stderr, 20)
    assert second.process.poll() is None, second.stderr
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(20) == 128 + signal.SIGTERM


def test_forwardings_of_the_users_logins(
    launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path
) -> None:
    """One port cannot be forwarded to two hosts, and the second client would end."""
    config = tmp_path / "config"
    config.write_text(hosts.config.read_text() + "  LocalForward 7123 localhost:22\n  ExitOnForwardFailure yes\n")
    job = launch("--", *TRAINER, "1", SMALL, ssh_args=f"-F {config}")
    assert job.wait() == 0, job.stderr


def test_a_trainer_in_a_container(launch: Callable[..., Launch]) -> None:
    """Within its namespace of processes the agent, and what lies below its /proc, is not there."""
    container = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    job = launch("--", *container, *TRAINER, "2", SMALL)
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("done") == 2, job.stdout


def test_the_file_with_the_token(launch: Callable[..., Launch]) -> None:
    """For its owner alone, in a folder that ends with the job."""
    show = (
        "import os, pathlib\nfile = pathlib.Path(os.environ['BYTEPS_JOB_TOKEN_FILE'])\n"
        "print('token', file, oct(file.stat().st_mode), oct(file.parent.stat().st_mode), flush=True)\n"
        "import time\ntime.sleep(int(os.environ['MY_SECONDS']))"
    )
    modes = ["0o100600", "0o40700"]
    command = ["--env", "MY_SECONDS", "--", sys.executable, "-c", show]
    for seconds, last in ((0, None), (100, signal.SIGTERM), (100, signal.SIGKILL)):
        job = launch(*command, variables={"MY_SECONDS": str(seconds)})
        job.wait_for("] token ", 2)
        if last is not None:
            job.process.send_signal(last)
        job.wait(20)
        found = [line.partition("] token ")[2].split() for line in job.stdout.splitlines()]
        assert [each[1:] for each in found] == [modes] * 2, job.stdout
        folders = [pathlib.Path(file).parent for file, *_ in found]
        wait_until(
            lambda folders=folders: not any(map(os.path.exists, folders)),
            lambda folders=folders: f"left: {folders}",
            20,
        )
        job.wait_gone()  # of SIGKILL the agents learn later, and the folder is not the last that ends
