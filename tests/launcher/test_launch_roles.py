"""One role by hand, the way of DMLC_ROLE."""

from __future__ import annotations

import signal

import pytest
from launching import Service, Start, Worker

SHOW = """\
import os
print(*map(os.environ.get, ("DMLC_ROLE", "DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")))
"""

MEET = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9000"}


@pytest.mark.parametrize("role", ["scheduler", "server", "Server"])
def test_a_service_runs_in_place_of_the_launcher(start: Start, service: Service, role: str) -> None:
    source = "#!{python}\nimport os\nprint(os.environ['DMLC_ROLE'], os.getpid())\nraise SystemExit(5)\n"
    launch = start(variables={**MEET, "DMLC_ROLE": role, "BYTEPS_SERVER_BINARY": service(source)})
    assert launch.wait() == 5
    assert launch.stdout == f"{role} {launch.process.pid}\n"


def test_a_service_dies_of_a_broken_pipe_as_elsewhere(start: Start, service: Service) -> None:
    """Python ignores SIGPIPE, and what is ignored stays so in the program that takes its place."""
    source = """\
#!/bin/sh
grep SigIgn /proc/self/status
"""
    launch = start(variables={**MEET, "DMLC_ROLE": "server", "BYTEPS_SERVER_BINARY": service(source)})
    assert launch.wait() == 0
    assert not int(launch.stdout.split()[1], 16) & 1 << (signal.SIGPIPE - 1)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_service_has_the_variables_of_the_command_line(start: Start, service: Service, role: str) -> None:
    source = "#!{python}\nimport os\nprint(*map(os.environ.get, ('CHOSEN', 'DMLC_INTERFACE')))\n"
    variables = {**MEET, "DMLC_ROLE": role, "BYTEPS_SERVER_BINARY": service(source)}
    launch = start("--env", "CHOSEN=1", "--interface", "lo", variables=variables)
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "1 lo\n"


def test_a_command_given_to_a_service_is_not_run(start: Start, service: Service) -> None:
    source = "#!{python}\nprint('the service')\n"
    launch = start("echo", "train", variables={**MEET, "DMLC_ROLE": "server", "BYTEPS_SERVER_BINARY": service(source)})
    assert launch.wait() == 0
    assert launch.stdout == "the service\n"


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_service_that_is_not_needed_says_so(start: Start, role: str) -> None:
    launch = start(variables={"DMLC_ROLE": role, "DMLC_NUM_WORKER": "1"})
    assert launch.wait() == 0
    assert f"DMLC_ROLE={role}: nothing to do: one worker host" in launch.stderr
    assert "BYTEPS_LOCAL_SIZE" in launch.stderr


@pytest.mark.parametrize(
    "variables, size",
    [
        ({"NVIDIA_VISIBLE_DEVICES": "0,3,5"}, 3),
        ({"NVIDIA_VISIBLE_DEVICES": "0,3,5", "BYTEPS_LOCAL_SIZE": "2"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, 1),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, 1),
        ({}, 1),
    ],
)
def test_local_workers(start: Start, worker: Worker, variables: dict[str, str], size: int) -> None:
    launch = start(*worker(SHOW), variables={**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", **variables})
    assert launch.wait() == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == [f"[worker 1.{rank}] worker 1 {rank} {size}" for rank in range(size)]


def test_a_server_beside_the_workers(start: Start, service: Service, worker: Worker) -> None:
    source = """#!{python}
import os, pathlib, signal
print(*map(os.environ.get, ("DMLC_ROLE", "BYTEPS_HOST_ID", "DMLC_NUM_SERVER")), flush=True)
pathlib.Path("up").touch()
signal.sigwait([signal.SIGTERM])
"""
    trainer = worker("""
import os, pathlib, time
while not pathlib.Path("up").exists():
    time.sleep(0.01)
print(*map(os.environ.get, ("DMLC_ROLE", "BYTEPS_HOST_ID", "BYTEPS_LOCAL_RANK")))
""")
    place = {**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "BYTEPS_LOCAL_SIZE": "2"}
    launch = start("--colocate", *trainer, variables={**place, "BYTEPS_SERVER_BINARY": service(source)})
    assert launch.wait() == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == [
        "[server of host 1] server worker-host-1 1",
        "[worker 1.0] worker worker-host-1 0",
        "[worker 1.1] worker worker-host-1 1",
    ]


_LEAVES = """#!{python}
import os, pathlib, sys, time
while not pathlib.Path("closed").exists():
    time.sleep(0.01)
pathlib.Path("pid.part").write_text(str(os.getpid()))
os.rename("pid.part", "pid")
sys.exit(STATUS)
"""

_STAYS = """
import pathlib, time
pathlib.Path("closed").touch()
server = pathlib.Path("pid")
while not server.exists() or pathlib.Path("/proc", server.read_text()).exists():
    time.sleep(0.01)
print("evaluated")
time.sleep(1000 * STATUS)
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_server_beside_the_workers_ends_first(start: Start, service: Service, worker: Worker, status: int) -> None:
    """With 0 when it has heard that the job is over: a trainer may work on alone, in an evaluation perhaps."""
    leaves, stays = (source.replace("STATUS", str(status)) for source in (_LEAVES, _STAYS))
    place = {**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "BYTEPS_SERVER_BINARY": service(leaves)}
    launch = start("--colocate", *worker(stays), variables=place)
    assert launch.wait() == status, launch.stderr
    if status == 0:
        assert launch.stdout == "[worker 1.0] evaluated\n"
        assert launch.stderr == ""
    else:
        assert "exited with code 3" in launch.stderr and "while workers were running" in launch.stderr


# The first fails and says why; the second ends when the server has, as one that hears of it late.
_FAILS = """
import os, pathlib, sys, time
server = pathlib.Path("pid")
if os.environ["BYTEPS_LOCAL_RANK"] == "0":
    pathlib.Path("closed").touch()
    sys.exit("this is why")
while not server.exists() or pathlib.Path("/proc", server.read_text()).exists():
    time.sleep(0.01)
sys.exit(3)
"""


def test_a_server_that_heard_of_the_end_is_not_its_cause(start: Start, service: Service, worker: Worker) -> None:
    leaves = service(_LEAVES.replace("STATUS", "0"))
    place = {**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "BYTEPS_LOCAL_SIZE": "2"}
    launch = start("--colocate", *worker(_FAILS), variables={**place, "BYTEPS_SERVER_BINARY": leaves})
    assert launch.wait() == 1
    assert "the likely cause" not in launch.stderr
    assert "bpslaunch: last lines of worker 1.0:\nbpslaunch:   this is why\n" in launch.stderr


@pytest.mark.parametrize(
    "variables, told",
    [
        ({}, "--colocate is for DMLC_ROLE=worker"),
        ({**MEET, "DMLC_ROLE": "server"}, "--colocate is for DMLC_ROLE=worker"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}, "needs no server"),
    ],
)
def test_a_server_beside_nobody(start: Start, worker: Worker, variables: dict[str, str], told: str) -> None:
    launch = start("--colocate", *worker(SHOW), variables=variables)
    assert launch.wait() == 2
    assert told in launch.stderr


def test_one_host_alone(start: Start, worker: Worker) -> None:
    launch = start(*worker(SHOW), variables={"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"})
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "[worker 0] worker 0 0 1\n"


@pytest.mark.parametrize(
    "variables, told",
    [
        ({"DMLC_ROLE": "worker"}, "DMLC_ROLE=worker: not set: DMLC_NUM_WORKER, DMLC_WORKER_ID"),
        (
            {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"},
            "DMLC_ROLE=server: not set: DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT",
        ),
        (
            {"DMLC_ROLE": "scheduler", "BYTEPS_FORCE_DISTRIBUTED": "1"},
            "not set: DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT",
        ),
        ({**MEET}, "DMLC_ROLE is not set, but DMLC_NUM_WORKER"),
        ({**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "2"}, "DMLC_WORKER_ID=2: out of range, expected 0 to 1"),
        ({**MEET, "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "one"}, "DMLC_NUM_SERVER=one: not a whole number"),
        ({**MEET, "DMLC_ROLE": "server", "DMLC_PS_ROOT_PORT": "70000"}, "DMLC_PS_ROOT_PORT=70000: out of range"),
    ],
)
def test_wrong_variables(start: Start, worker: Worker, variables: dict[str, str], told: str) -> None:
    launch = start(*worker("print('started')"), variables=variables)
    assert launch.wait() == 2
    assert told in launch.stderr
    assert "started" not in launch.stdout


def test_the_workers_of_one_host_need_nobody_else(start: Start, worker: Worker) -> None:
    names = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "BYTEPS_LOCAL_SIZE", "DMLC_PS_ROOT_URI")
    source = f"import os\nprint([os.environ[name] for name in {names}], os.environ.get('BYTEPS_FORCE_DISTRIBUTED'))"
    variables = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    launch = start("--", *worker(source), variables=variables)
    assert launch.wait() == 0, launch.stderr
    for rank in range(2):
        assert f"[worker {rank}] ['1', '0', '2', '127.0.0.1'] None" in launch.stdout


def test_one_failing_worker_ends_those_of_its_host(start: Start, worker: Worker) -> None:
    source = "import os, sys, time\nif os.environ['BYTEPS_LOCAL_RANK'] == '1':\n    sys.exit(3)\ntime.sleep(1000)"
    variables = {**MEET, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "3"}
    launch = start(*worker(source), variables=variables)
    assert launch.wait() == 3
    assert "worker 0.1 (pid " in launch.stderr


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_workers_of_one_host_that_may_not_share_memory(start: Start, worker: Worker, check: list[str]) -> None:
    variables = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    launch = start(*check, *worker("print('started')"), variables={**variables, "BYTEPS_SHM": "0"})
    assert launch.wait() == (1 if check else 2)
    told = launch.stdout if check else launch.stderr
    assert "BYTEPS_SHM=0: without servers 2 workers must reduce among themselves" in told
    assert "set BYTEPS_FORCE_DISTRIBUTED=1 for every role" in told
    assert "started" not in launch.stdout
