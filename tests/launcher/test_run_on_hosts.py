"""byteps.run(function, hosts=...) over real ssh: results, exceptions of another host, hosts that are not there."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launching import Launch, Spawn, needs_package
from ssh_hosts import SshHosts

pytestmark = needs_package

# A module that all hosts can import.
FUNCTIONS = """\
import os
import socket

import byteps
from native_push import push_pull_doubles


def total(scale, offset=0.0):
    byteps.init()
    request, memory = push_pull_doubles("x", [scale * byteps.rank()])
    request.wait()
    return byteps.rank(), socket.gethostname(), memory[0] + offset


def fail_on_the_last():
    byteps.init()
    if byteps.rank() == byteps.size() - 1:
        raise KeyError("no such data")
    byteps.barrier()


def fail_before_init():
    if socket.gethostname() == "lh2":
        raise KeyError("no such file")
    byteps.init()


class OfHosts:
    def __setstate__(self, _state):
        raise ValueError("only hosts have these")


def return_what_is_of_hosts():
    thing = OfHosts()
    thing.value = 1
    return thing
"""

CALL = """\
import json
import sys

import byteps
import functions

wanted = json.loads(sys.argv[1])
try:
    found = byteps.run(getattr(functions, wanted.pop("function")), **wanted)
    print(json.dumps({"results": found}))
except byteps.WorkerError as error:
    told = {"message": str(error), "rank": error.rank, "traceback": error.remote_traceback}
    print(json.dumps({**told, "cause": repr(error.__cause__)}))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture
def run(spawn: Spawn, hosts: SshHosts, tmp_path: pathlib.Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Calls byteps.run where the user sits; what came of it."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "call.py").write_text(CALL)
    support = pathlib.Path(__file__).resolve().parents[1] / "frameworks" / "support"

    def call(function: str, variables: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
        over_hosts = ["--ssh-args", hosts.ssh_args] if "hosts" in arguments else []
        wanted = {"function": function, "launcher_args": over_hosts, **arguments}
        command = [*hosts.here, sys.executable, str(tmp_path / "call.py"), json.dumps(wanted)]
        path = ":".join(filter(None, [str(tmp_path), str(support), os.environ.get("PYTHONPATH")]))
        launch: Launch = spawn(*command, variables={"PYTHONPATH": path, **(variables or {})})
        assert launch.wait() == 0, launch.stderr
        return json.loads(launch.stdout.splitlines()[-1])

    yield call
    hosts.wait_empty()


def test_results_by_rank(run: Callable[..., dict[str, Any]]) -> None:
    found = run("total", args=[2.0], kwargs={"offset": 1.0}, hosts=["lh1:1", "lh2:2"])
    assert found == {"results": [[0, "lh1", 7.0], [1, "lh2", 7.0], [2, "lh2", 7.0]]}


# An address whose packets go nowhere.
_NOWHERE = "10.231.7.200"


@pytest.fixture
def nowhere(hosts: SshHosts) -> Iterator[str]:
    words = ["ip", "-n", hosts.center, "neigh"]
    entry = [_NOWHERE, "lladdr", "02:b7:00:00:00:01", "dev", "br0"]
    subprocess.run([*words, "replace", *entry, "nud", "permanent"], check=True)
    yield _NOWHERE
    subprocess.run([*words, "del", *entry], check=True)


@pytest.mark.parametrize("hosts_of_job", [None, "localhost:2", "localhost,lh1"])
def test_a_caller_who_came_by_ssh(run: Callable[..., dict[str, Any]], nowhere: str, hosts_of_job: str | None) -> None:
    """The address from which the user has logged in is not that of the caller."""
    variables = {"SSH_CONNECTION": f"{nowhere} 50022 10.231.7.254 22"}
    where = {"num_workers": 2} if hosts_of_job is None else {"hosts": hosts_of_job}
    found = run("total", variables, args=[2.0], **where)
    assert [result[::2] for result in found["results"]] == [[0, 2.0], [1, 2.0]], found


def test_an_address_of_the_caller_that_does_not_answer(spawn: Spawn, hosts: SshHosts, nowhere: str) -> None:
    """A bridge of containers, for instance."""
    fetch = """
import os, sys
from byteps import run_worker, runner
with runner._Desk(b"the task", remote=False) as desk:
    os.environ.update(desk.variables)
    os.environ[runner.ADDRESSES] = f"{sys.argv[1]}:9,{desk.variables[runner.ADDRESSES]}"
    print(run_worker._connect().recv_bytes())
"""
    launch = spawn(*hosts.here, sys.executable, "-c", fetch, nowhere)
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "b'the task'\n"


def test_a_part_of_the_places(run: Callable[..., dict[str, Any]]) -> None:
    found = run("total", args=[1.0], hosts="lh1:1,lh2:2", num_workers=2)
    assert found == {"results": [[0, "lh1", 1.0], [1, "lh2", 1.0]]}


def test_an_exception_on_another_host(run: Callable[..., dict[str, Any]]) -> None:
    found = run("fail_on_the_last", hosts="lh1:1,lh2:2")
    assert found["message"].startswith("the function raised an exception on rank 2:")
    assert found["rank"] == 2 and found["cause"] == "KeyError('no such data')"
    assert "in fail_on_the_last" in found["traceback"]


def test_an_exception_before_ranks_are_known(run: Callable[..., dict[str, Any]]) -> None:
    found = run("fail_before_init", hosts="lh1,lh2")
    assert found["message"].startswith("the function raised an exception on worker 1.0, before init():")
    assert found["rank"] is None and found["cause"] == "KeyError('no such file')"


def test_a_result_that_cannot_be_read_here(run: Callable[..., dict[str, Any]]) -> None:
    found = run("return_what_is_of_hosts", hosts="lh1")
    assert "has returned what cannot be unpickled: ValueError('only hosts have these')" in found["message"]


@pytest.mark.parametrize("host", ["nowhere", "10.231.7.99"])
def test_a_host_that_cannot_be_reached(run: Callable[..., dict[str, Any]], host: str) -> None:
    found = run("total", args=[1.0], hosts=["lh1", host])
    assert "0 workers have returned a result; bpslaunch says:" in found["message"]
    assert f"host {host} could not be reached" in found["message"]
