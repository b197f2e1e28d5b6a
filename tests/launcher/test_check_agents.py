"""`bpslaunch --hosts` when an agent that has answered goes away, or does not answer any more."""

from __future__ import annotations

import pathlib
import signal
import sys

import pytest
from launching import BPSLAUNCH, Service, Spawn, Start, wait_until

# An agent in which a method is another one.
AGENT = """\
import os, sys
sys.path.insert(0, {checkout!r})
from launcher.remote import agent
setattr(agent.Agent, {method!r}, lambda *_: {instead})
sys.exit(agent.serve())
"""


def other_agent(folder: pathlib.Path, method: str, instead: str) -> list[str]:
    """The options for it."""
    program = folder / "agent.py"
    checkout = str(pathlib.Path(BPSLAUNCH[1]).parents[1])
    program.write_text(AGENT.format(checkout=checkout, method=method, instead=instead))
    return ["--remote-bpslaunch", f"{sys.executable} {program}"]


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("method, asked", [("_check", "check"), ("_probe", "probe of the other hosts")])
def test_a_host_that_is_lost_in_the_check(
    start: Start, service: Service, tmp_path: pathlib.Path, method: str, asked: str, code: int
) -> None:
    # Two names of one host: that is a failure by itself, but the check goes on.
    hosts = "localhost" if method == "_check" else "localhost,127.0.0.1"
    words = ["--check", *other_agent(tmp_path, method, f"os._exit({code})"), "--hosts", hosts]
    check = start(*words, variables={"BYTEPS_SERVER_BINARY": service("#!/bin/sh\n")})
    assert check.wait() == 1, check.stdout
    assert f"FAIL  localhost: the {asked}: was lost: its agent exited with code {code}" in check.stdout, check.stdout
    assert "0 hosts ok" in check.stdout


def test_a_host_that_goes_silent_in_the_check(start: Start, service: Service, tmp_path: pathlib.Path) -> None:
    agent = other_agent(tmp_path, "_check", "os.kill(os.getpid(), 19)")  # SIGSTOP
    words = ["--check", *agent, "--hosts", "localhost"]
    check = start(*words, variables={"BYTEPS_SERVER_BINARY": service("#!/bin/sh\n")})
    assert check.wait(40) == 1, check.stdout  # well before the deadline of an answer
    assert "FAIL  localhost: the check: has not been heard of for 5 s: the host or the network is down" in check.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_check(start: Start, number: signal.Signals) -> None:
    check = start("--check", "--hosts", "localhost", "--remote-bpslaunch", "sh -c 'sleep 987'")
    wait_until(lambda: "sleep 987 " in check.processes().values(), lambda: f"no agent: {check.processes()}")
    check.process.send_signal(number)
    assert check.wait() == 128 + number, check.stderr


def test_an_agent_whose_python_lacks_a_library(start: Start) -> None:
    """As one that `module load` has brought here: the variables of the job come later."""
    why = "cannot open shared object file: No such file or directory"
    said = f"python: error while loading shared libraries: libx.so.1: {why}"
    job = start("--hosts", "localhost", "--remote-bpslaunch", f"sh -c 'echo {said} >&2; exit 127'", "--", "true")
    assert job.wait() == 127
    assert "(its Python lacks a library" in job.stderr and "not installed" not in job.stderr, job.stderr


# bpslaunch with less patience.
HASTY = """\
import sys
sys.path.insert(0, {checkout!r})
from launcher import main
from launcher.remote import host_supervisor
host_supervisor._GREETING_SECONDS = 10.0
sys.exit(main.main())
"""


def test_a_coordinators_host_that_does_not_listen_is_named(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "hasty.py"
    program.write_text(HASTY.format(checkout=str(pathlib.Path(BPSLAUNCH[1]).parents[1])))
    agent = other_agent(tmp_path, "_listen", "None")
    job = spawn(sys.executable, str(program), *agent, "--hosts", "localhost:2", "--", "true")
    assert job.wait() == 1
    assert "no answer within 10 s from: localhost, where the coordinator shall listen" in job.stderr
