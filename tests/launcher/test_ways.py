"""Which options count in which way of launching: one that would change nothing is an error, and starts nothing."""

from __future__ import annotations

import pathlib

import pytest
from launching import Start

from launcher.arguments import parse_arguments
from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.ways import Way, way_of

WORKER = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "DMLC_NUM_SERVER": "1"}
WORKER.update(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT="9000")
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "job": ([], {}),
    "worker": ([], WORKER),
    "server": ([], {**WORKER, "DMLC_ROLE": "server"}),
    "scheduler": ([], {**WORKER, "DMLC_ROLE": "scheduler"}),
    "hosts": (["--hosts", "a,b"], {}),
    "allocation": ([], {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]"}),
    "task": ([], {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}),
}
SSH = (["--ssh-port", "22"], ["--ssh-user", "me"], ["--ssh-identity", "key"], ["--ssh-args=-v"])
ALL_SSH = (*SSH, ["--scheduler-ssh-port", "22"])
SPREAD = (["--directory", "/no/such"], ["--remote-bpslaunch", "bpslaunch"], ["--host-names"])
OUTPUT = (["--output-dir", "out"], ["--timestamps"], ["--kill-after", "5"])

REFUSED = [
    *((way, option) for way in ("job", "worker", "server", "allocation", "task") for option in ALL_SSH),
    *((way, option) for way in ("job", "worker", "server", "task") for option in SPREAD),
    *((way, option) for way in ("server", "scheduler") for option in OUTPUT),
    *((way, ["--server-tasks", "1"]) for way in ("job", "worker", "hosts", "task")),
    *((way, ["--colocate"]) for way in ("job", "server", "task")),
    ("job", ["--interface", "eth0"]),
    ("task", ["--port", "9123"]),
]
COUNT = [
    *(("hosts", option) for option in (*ALL_SSH, *SPREAD, *OUTPUT, ["--servers", "2"], ["--port", "9123"])),
    *(("allocation", option) for option in (*SPREAD, *OUTPUT, ["--server-tasks", "1"], ["--interface", "eth0"])),
    *(("task", option) for option in (*OUTPUT, ["--servers", "2"], ["--interface", "eth0"])),
    *(("worker", option) for option in (*OUTPUT, ["--colocate"], ["--interface", "eth0"])),
    *(("job", option) for option in (*OUTPUT, ["--servers", "2"], ["--port", "0"])),
]


@pytest.fixture
def variables(tmp_path: pathlib.Path) -> dict[str, str]:
    """A PATH on which Slurm's srun is found; nothing here calls it."""
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\nexit 99\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def name(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def find(way: str, option: list[str], variables: dict[str, str]) -> Way:
    words, own = WAYS[way]
    return way_of(parse_arguments([*words, *option, "--", "true"]), Environment({**variables, **own}))[0]


@pytest.mark.parametrize("way, option", REFUSED, ids=name)
def test_an_option_of_another_way(variables: dict[str, str], way: str, option: list[str]) -> None:
    with pytest.raises(LaunchError, match=rf"^{option[0].partition('=')[0]} (is for|does not count with) ") as error:
        find(way, option, variables)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("way, option", COUNT, ids=name)
def test_an_option_that_counts(variables: dict[str, str], way: str, option: list[str]) -> None:
    found = find(way, option, variables)
    assert found is (Way.WORKERS if way == "worker" else Way[way.upper()])


def test_variables_of_programs_of_torch_are_no_launchers(variables: dict[str, str]) -> None:
    """A shell in which they are left over starts a job of its own; what torchrun has started is one of its tasks."""
    left = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    arguments = parse_arguments(["--", "true"])
    assert way_of(arguments, Environment({**variables, **left})) == (Way.JOB, None)
    torchrun = {**left, "TORCHELASTIC_RUN_ID": "a", "GROUP_RANK": "0"}
    assert way_of(arguments, Environment({**variables, **torchrun}))[0] is Way.TASK


def test_the_error_says_where_it_belongs(start: Start) -> None:
    launch = start("--ssh-port", "22", "--", "echo", "trains")
    assert launch.wait() == 2 and launch.stdout == ""
    said = "--ssh-port is for several hosts (--hosts, --hostfile), not for a whole job on this host: leave it out\n"
    assert launch.stderr == f"bpslaunch: {said}"
