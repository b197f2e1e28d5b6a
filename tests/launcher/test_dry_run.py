"""--dry-run, --env and --timestamps."""

from __future__ import annotations

import pathlib
import re
import shlex
import sys

import pytest
from launching import Start, Worker

from launcher.dry_run import shell_line


def test_each_command_as_it_would_run(start: Start, tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "mark"
    launch = start("--dry-run", "--workers", "2", "--servers", "1", "--env", "MINE=a b", "--", "touch", str(mark))
    assert launch.wait() == 0, launch.stderr
    lines = dict(re.findall(r"^\[(.*?)\] (.*)$", launch.stdout, re.MULTILINE))
    assert list(lines) == ["coordinator", "server 0", "worker 0", "worker 1"]
    words = shlex.split(lines["worker 1"])
    assert words[0] == "env" and words[-2:] == ["touch", str(mark)]
    assert {"MINE=a b", "DMLC_ROLE=worker", "BYTEPS_LOCAL_RANK=1", "BYTEPS_LOCAL_SIZE=2"} <= set(words)
    assert not mark.exists(), "nothing is started"


def test_words_that_are_no_text(start: Start) -> None:
    """What is printed is what would run, byte for byte."""
    launch = start("--dry-run", "--", "echo", b"a\xff b")
    assert launch.wait() == 0, launch.stderr
    assert b"echo 'a\xff b'\n" in launch.stdout_bytes


def test_a_role_by_hand(start: Start) -> None:
    variables = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    variables["DMLC_PS_ROOT_PORT"] = "9000"
    server = start("--dry-run", variables={**variables, "DMLC_ROLE": "server"})
    assert server.wait() == 0 and server.stdout.startswith("[server] ")
    place = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "BYTEPS_LOCAL_SIZE": "2"}
    workers = start("--dry-run", "true", variables={**variables, **place})
    assert workers.wait() == 0 and workers.stdout.count("[worker 1.") == 2


def test_cores_are_shown(start: Start) -> None:
    launch = start("--dry-run", "--workers", "1", "--", "true", variables={"BYTEPS_VISIBLE_CPU_CORES": "0"})
    assert launch.wait() == 0, launch.stderr
    assert "taskset -c 0 true" in launch.stdout


def test_hosts_are_not_reached(start: Start) -> None:
    words = ["--dry-run", "--hosts", "a:2,b", "--server-hosts", "me@c", "--ssh-port", "2222", "--ssh-user", "you"]
    launch = start(*words, "--", "python", "train.py", variables={"BYTEPS_JOB_TOKEN": "a secret of the tests"})
    assert launch.wait() == 0, launch.stderr
    lines = dict(re.findall(r"^\[(.*?)\] (.*)$", launch.stdout, re.MULTILINE))
    assert list(lines) == [
        *("host a", "coordinator", "worker 0.0", "worker 0.1"),
        *("host b", "worker 1.0", "host c", "server 0"),
    ]
    assert "-p 2222 -l you a " in lines["host a"] and "-p 2222 me@c " in lines["host c"]
    assert "DMLC_WORKER_ID=1" in lines["worker 1.0"] and "DMLC_RANK=0" in lines["server 0"]
    assert "a secret of the tests" not in launch.stdout


def test_cores_by_hand_of_other_hosts(start: Start) -> None:
    """Those by topology are known there alone."""
    words = ["--dry-run", "--hosts", "a:2", "--", "true"]
    launch = start(*words, variables={"BYTEPS_VISIBLE_CPU_CORES": "0-3:900-903"})
    assert launch.wait() == 0, launch.stderr
    assert [line.rpartition("taskset")[2] for line in launch.stdout.splitlines() if "[worker" in line] == [
        " -c 0-3 true",
        " -c 900-903 true",
    ]
    assert start(*words, variables={"BYTEPS_VISIBLE_CPU_CORES": "0-3"}).wait() != 0, "one section for two workers"


def test_servers_on_worker_hosts_too(start: Start) -> None:
    launch = start("--dry-run", "--hosts", "a,b", "--server-hosts", "c", "--colocate", "--", "true")
    assert launch.wait() == 0, launch.stderr
    lines = dict(re.findall(r"^\[(.*?)\] (.*)$", launch.stdout, re.MULTILINE))
    assert list(lines) == [
        *("host a", "coordinator", "server 1", "worker 0.0"),
        *("host b", "server 2", "worker 1.0", "host c", "server 0"),
    ]
    assert "BYTEPS_HOST_ID=host-a" in lines["server 1"] and "BYTEPS_HOST_ID=host-a" in lines["worker 0.0"]
    assert "DMLC_NUM_SERVER=3" in lines["server 0"]
    alone = start("--dry-run", "--hosts", "a:2", "--colocate", "--", "true")
    assert alone.wait() != 0 and "one worker host needs no server" in alone.stderr


def test_fewer_servers_than_hosts_with_one_on_each(start: Start) -> None:
    words = ["--dry-run", "--hosts", "a,b", "--colocate"]
    few = start(*words, "--servers", "1", "--", "true")
    assert few.wait() == 2 and few.stdout == ""
    assert "1 servers (--servers, DMLC_NUM_SERVER) contradict --colocate" in few.stderr, few.stderr
    for servers in ("2", "3"):
        enough = start(*words, "--servers", servers, "--", "true")
        assert enough.wait() == 0 and f"DMLC_NUM_SERVER={servers}" in enough.stdout, enough.stderr
    dedicated = start(*words, "--server-hosts", "c,d", "--servers", "1", "--", "true")
    assert dedicated.wait() == 0 and "DMLC_NUM_SERVER=3" in dedicated.stdout, dedicated.stderr


def test_a_variable_for_every_process(start: Start, worker: Worker) -> None:
    show = "import os; print(os.environ['A'], os.environ['B'], os.environ['HOME_OF'])"
    words = ["--workers", "2", "--env", "A=1=2", "--env", "B:3", "--env", "HOME_OF"]
    launch = start(*words, "--", *worker(show), variables={"HOME_OF": "here"})
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout.count("1=2 3 here") == 2


@pytest.mark.parametrize(
    "entry, said", [("9A=1", "expected NAME=value"), ("NO_SUCH", "there is no such variable here")]
)
def test_a_variable_that_is_none(start: Start, entry: str, said: str) -> None:
    launch = start("--env", entry, "--", "true")
    assert launch.wait() == 2 and said in launch.stderr


def test_timestamps(start: Start) -> None:
    launch = start("--timestamps", "--workers", "2", "--", sys.executable, "-c", "print('hello')")
    assert launch.wait() == 0, launch.stderr
    found = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[worker \d\] hello$", launch.stdout, re.MULTILINE)
    assert len(found) == 2, launch.stdout


def test_a_line_for_a_shell() -> None:
    assert shell_line(["a b", "c"], {"X": "1", "Y": "2"}, {"Y": "2"}, [4]) == "env X=1 taskset -c 4 'a b' c"


def test_gdb_and_all_variables_of_other_hosts(start: Start) -> None:
    """What is the same here is there nevertheless: only the command shows it. Secrets stay where they are."""
    given = {"BYTEPS_ENABLE_GDB": "1", "BYTEPS_LOG_LEVEL": "info", "WANDB_API_KEY": "of the tests", "NCCL_DEBUG": "1"}
    launch = start("--dry-run", "--hosts", "a,b", "--", "python train.py", variables=given)
    assert launch.wait() == 0, launch.stderr
    lines = dict(re.findall(r"^\[(.*?)\] (.*)$", launch.stdout, re.MULTILINE))
    words = shlex.split(lines["worker 1.0"])
    assert {"BYTEPS_LOG_LEVEL=info", "NCCL_DEBUG=1", "WANDB_API_KEY=...", "BYTEPS_JOB_TOKEN=..."} <= set(words)
    assert words[words.index("gdb") :][-4:] == ["--args", "/bin/sh", "-c", "python train.py"]
    assert "gdb" in shlex.split(lines["server 0"]) and shlex.split(lines["server 0"])[-1] == "byteps_server"


LEFT = {"DMLC_NUM_SERVER": "7", "DMLC_PS_ROOT_PORT": "9000", "BYTEPS_LOCAL_SIZE": "4", "BYTEPS_HOST_ID": "mine"}


def test_variables_that_hosts_do_not_follow(start: Start, tmp_path: pathlib.Path) -> None:
    launch = start("--dry-run", "--hosts", "a,b", "--", "true", variables=LEFT)
    assert launch.wait() == 0 and "server 1" in launch.stdout and "server 2" not in launch.stdout
    assert launch.stderr == (
        "bpslaunch: ignored, since this is a job over several hosts: DMLC_NUM_SERVER=7 (see --servers), "
        "DMLC_PS_ROOT_PORT=9000 (see --port), BYTEPS_LOCAL_SIZE=4 (see --hosts a:N), BYTEPS_HOST_ID=mine\n"
    )
    (tmp_path / "hosts").write_text("a\nb\n")
    byteps = start("--dry-run", "-WH", str(tmp_path / "hosts"), "--", "true", variables={"BYTEPS_LOCAL_SIZE": "2"})
    assert byteps.wait() == 0 and byteps.stderr == "" and "[worker 1.1]" in byteps.stdout


def test_variables_of_one_host(start: Start) -> None:
    """What is said to be ignored is not in force on this host, either, whose agent is started without ssh."""
    left = {"DMLC_NODE_HOST": "10.0.0.9", "BYTEPS_HOST_ID": "mine"}
    show = f"import os; print('has', *(os.environ.get(name) for name in {tuple(left)}))"
    launch = start("--hosts", "localhost", "--", sys.executable, "-c", show, variables=left)
    assert launch.wait() == 0, launch.stderr
    assert "DMLC_NODE_HOST=10.0.0.9 (see DMLC_INTERFACE), BYTEPS_HOST_ID=mine" in launch.stderr
    assert "has None None\n" in launch.stdout, launch.stdout
    chosen = ["--env", "DMLC_NODE_HOST", "--env", "BYTEPS_HOST_ID=ours"]
    launch = start("--hosts", "localhost", *chosen, "--", sys.executable, "-c", show, variables=left)
    assert launch.wait() == 0 and "has 10.0.0.9 ours\n" in launch.stdout, launch.stdout + launch.stderr
