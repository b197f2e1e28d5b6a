"""A whole job on one host: what its processes are given, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys

import pytest
from launching import Launch, Service, Start, Worker

from launcher import process_tree
from launcher.command import in_debugger
from launcher.environment import Environment
from launcher.lanes import lanes

SHOW = """\
import json, os
shown = ("DMLC_", "BYTEPS_", "PYTHONUNBUFFERED", "OMP_", "RANK", "LOCAL_", "IPATH_")
names = {k: v for k, v in os.environ.items() if k.startswith(shown)}
names["parent"] = str(os.getppid())
token = names.get("BYTEPS_JOB_TOKEN_FILE")
if token:
    names["token"] = open(token).read().strip()
    names["mode"] = os.stat(token).st_mode
print("SHOW" + json.dumps(names), flush=True)
"""


def shown(launch: Launch) -> dict[str, dict]:
    """What each process that ran SHOW printed, by its prefix."""
    result = {}
    for line in launch.stdout.splitlines():
        prefix, found, text = line.partition(" SHOW")
        if found:
            result[prefix] = json.loads(text)
    return result


@pytest.mark.parametrize("forced", [False, True])
def test_variables_of_a_job(start: Start, worker: Worker, service: Service, forced: bool) -> None:
    wait = "import signal\nsignal.sigwait([signal.SIGTERM])\n"
    launch = start(
        *["--workers", "3", "--servers", "2", "--", *worker(SHOW)],
        variables={
            "BYTEPS_SERVER_BINARY": service("#!{python}\n" + SHOW + wait),
            # Left over from elsewhere: must not reach the job.
            "DMLC_NUM_WORKER": "7",
            "DMLC_WORKER_ID": "5",
            "DMLC_PS_ROOT_URI": "10.9.8.7",
            "BYTEPS_GLOBAL_RANK": "4",
            **({"BYTEPS_FORCE_DISTRIBUTED": "true"} if forced else {}),
        },
    )
    assert launch.wait() == 0, launch.stderr
    assert launch.stderr == "", "quiet by default"
    seen = shown(launch)
    workers = [seen[f"[worker {rank}]"] for rank in range(3)]
    for names in seen.values():
        assert names.pop("parent") == names.pop("BYTEPS_LAUNCHER_PID"), "Yama is told to allow its descendants"
    # The workers may end before a service had the time to say anything.
    services = [seen[name] for name in seen if "worker" not in name]
    first = workers[0]
    for names in workers + services:
        assert names["DMLC_NUM_WORKER"] == "1"
        assert names["DMLC_NUM_SERVER"] == "2"
        assert names["DMLC_PS_ROOT_URI"] == "127.0.0.1"
        assert names.get("BYTEPS_FORCE_DISTRIBUTED") == ("1" if forced else None)
        assert names["BYTEPS_JOB_LINGER"] == "-1"
        assert "BYTEPS_GLOBAL_RANK" not in names
        for name in ("DMLC_PS_ROOT_PORT", "BYTEPS_JOB_ID", "BYTEPS_JOB_TOKEN_FILE", "token"):
            assert names[name] == first[name]
    assert stat.S_IMODE(first["mode"]) == 0o600
    assert len(first["token"]) >= 32
    assert not pathlib.Path(first["BYTEPS_JOB_TOKEN_FILE"]).exists()
    for rank, names in enumerate(workers):
        assert names["DMLC_ROLE"] == "worker"
        assert names["DMLC_WORKER_ID"] == "0"
        assert names["BYTEPS_LOCAL_RANK"] == str(rank)
        assert names["BYTEPS_LOCAL_SIZE"] == "3"
        assert names["PYTHONUNBUFFERED"] == "1"
        assert int(names["OMP_NUM_THREADS"]) >= 1
        assert "RANK" not in names and "LOCAL_RANK" not in names
        assert "BYTEPS_COORDINATOR_FD" not in names


def test_servers_are_told_how_many_threads(
    start: Start, worker: Worker, service: Service, tmp_path: pathlib.Path
) -> None:
    told = tmp_path / "told"
    server = f"""#!{{python}}
import os, pathlib, signal
if os.environ["DMLC_ROLE"] == "server":
    pathlib.Path({str(told)!r}).symlink_to(os.environ.get("BYTEPS_SERVER_ENGINE_THREAD", "unset"))
signal.sigwait([signal.SIGTERM])
"""
    wait = f"""
import os, time
end = time.monotonic() + 60
while not os.path.islink({str(told)!r}):
    assert time.monotonic() < end
    time.sleep(0.01)
"""
    variables = {"BYTEPS_SERVER_BINARY": service(server)}
    launch = start("--workers", "2", "--servers", "1", "--", *worker(wait), variables=variables)
    assert launch.wait() == 0, launch.stderr
    threads = lanes(1, Environment({}))
    assert str(told.readlink()) == ("unset" if threads is None else str(threads))


def test_one_worker_is_alone(start: Start, worker: Worker) -> None:
    launch = start(*worker(SHOW), variables={"BYTEPS_SERVER_BINARY": "/nonexistent"})
    assert launch.wait() == 0, launch.stderr
    names = shown(launch)["[worker 0]"]
    assert names["DMLC_NUM_WORKER"] == "1"
    assert names["DMLC_NUM_SERVER"] == "0"
    assert names["BYTEPS_LOCAL_SIZE"] == "1"
    for absent in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "BYTEPS_FORCE_DISTRIBUTED", "BYTEPS_JOB_TOKEN_FILE"):
        assert absent not in names


@pytest.mark.parametrize("own", [None, ""])
def test_no_library_takes_the_signals(start: Start, worker: Worker, own: str | None) -> None:
    """A library that libfabric loads sets signal handlers, unless told not to; a user's own word stays."""
    launch = start(*worker(SHOW), variables={} if own is None else {"IPATH_NO_BACKTRACE": own})
    assert launch.wait() == 0, launch.stderr
    assert shown(launch)["[worker 0]"]["IPATH_NO_BACKTRACE"] == ("1" if own is None else own)


def test_forced_distributed_brings_a_server(start: Start, worker: Worker) -> None:
    launch = start(*worker(SHOW), variables={"BYTEPS_FORCE_DISTRIBUTED": "1"})
    assert launch.wait() == 0, launch.stderr
    assert shown(launch)["[worker 0]"]["DMLC_NUM_SERVER"] == "1"


def test_the_users_token_is_kept(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--", *worker(SHOW), variables={"BYTEPS_JOB_TOKEN": "mine"})
    assert launch.wait() == 0, launch.stderr
    names = shown(launch)["[worker 1]"]
    assert names["BYTEPS_JOB_TOKEN"] == "mine"
    assert "BYTEPS_JOB_TOKEN_FILE" not in names


def test_coordinator_inherits_the_listening_socket(start: Start, worker: Worker, service: Service) -> None:
    """A worker that connects before the coordinator accepts is neither refused nor lost."""
    coordinator = """\
#!{python}
import os, signal, socket, sys
if os.environ["DMLC_ROLE"] == "scheduler":
    listener = socket.socket(fileno=int(os.environ["BYTEPS_COORDINATOR_FD"]))
    assert listener.getsockname()[1] == int(os.environ["DMLC_PS_ROOT_PORT"])
    listener.accept()[0].sendall(b"hello from the coordinator")
else:
    assert "BYTEPS_COORDINATOR_FD" not in os.environ
signal.sigwait([signal.SIGTERM])
"""
    connect = """\
import os, socket
root = (os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]))
with socket.create_connection(root, timeout=100) as connection:
    print(connection.recv(100).decode())
"""
    launch = start(
        *["--workers", "1", "--servers", "1", "--", *worker(connect)],
        variables={"BYTEPS_SERVER_BINARY": service(coordinator)},
    )
    assert launch.wait() == 0, launch.stderr
    assert "[worker 0] hello from the coordinator" in launch.stdout


def test_a_dead_coordinator_refuses_connections(start: Start, worker: Worker, service: Service) -> None:
    """Nobody but the coordinator holds its socket, so its death is seen at once."""
    coordinator = """\
#!{python}
import os, signal
if os.environ["DMLC_ROLE"] == "scheduler":
    os.close(int(os.environ["BYTEPS_COORDINATOR_FD"]))
signal.sigwait([signal.SIGTERM])
"""
    connect = """\
import os, socket, time
root = (os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]))
deadline = time.monotonic() + 100
while time.monotonic() < deadline:
    try:
        socket.create_connection(root, timeout=5).close()
    except ConnectionResetError:  # it was closed while this one waited to be accepted
        continue
    except ConnectionRefusedError:
        print("refused")
        break
"""
    launch = start("--servers", "1", "--", *worker(connect), variables={"BYTEPS_SERVER_BINARY": service(coordinator)})
    assert launch.wait() == 0, launch.stderr
    assert "[worker 0] refused" in launch.stdout


def test_port_in_use(start: Start, worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launch = start("--workers", "2", "--port", str(port), "--", *worker("print('started')"))
        assert launch.wait() == 1
    assert f"127.0.0.1:{port}: Address already in use" in launch.stderr
    assert "started" not in launch.stdout


def test_two_jobs_at_once(start: Start, worker: Worker) -> None:
    source = SHOW + "import sys, signal\nsignal.sigwait([signal.SIGTERM])\n"
    launches = [start("--workers", "2", "--", *worker(source)) for _ in range(2)]
    for launch in launches:
        launch.wait_for("SHOW", 2)
    one, two = (shown(launch)["[worker 0]"] for launch in launches)
    for name in ("DMLC_PS_ROOT_PORT", "BYTEPS_JOB_ID", "BYTEPS_JOB_TOKEN_FILE", "token"):
        assert one[name] != two[name]
    launches[0].process.terminate()
    assert launches[0].wait() == 143
    assert launches[1].process.poll() is None
    launches[1].process.terminate()
    assert launches[1].wait() == 143


def test_wrong_numbers(start: Start, worker: Worker) -> None:
    for words, variables, text in (
        (["--workers", "0"], {}, "must be at least 1"),
        (["--workers", "two"], {}, "invalid whole number value: 'two'"),
        (
            ["--workers", "2"],
            {"BYTEPS_SHM": "0"},
            "BYTEPS_SHM=0: without servers 2 workers must reduce among themselves",
        ),
        (
            ["--workers", "3", "--servers", "0"],
            {"BYTEPS_LOCAL_REDUCE": "off"},
            "BYTEPS_LOCAL_REDUCE=off: without servers 3",
        ),
        (["--servers", "0"], {"BYTEPS_FORCE_DISTRIBUTED": "1"}, "contradicts BYTEPS_FORCE_DISTRIBUTED=1"),
        (["--workers", "1"], {"BYTEPS_FORCE_DISTRIBUTED": "maybe"}, "BYTEPS_FORCE_DISTRIBUTED=maybe: expected 0 or 1"),
        (["--workers", "2"], {"DMLC_ROLE": "worker"}, "unset DMLC_ROLE or leave the options out"),
        (["--workers", "2"], {"DMLC_ROLE": "boss"}, "DMLC_ROLE=boss: expected one of scheduler, server, worker"),
    ):
        launch = start(*words, "--", *worker("print('started')"), variables=variables)
        assert launch.wait() == 2, launch.stderr
        assert text in launch.stderr
        assert "started" not in launch.stdout


def test_no_command(start: Start) -> None:
    launch = start("--workers", "2")
    assert launch.wait() == 2
    assert "no command to run" in launch.stderr


def test_no_such_program(start: Start) -> None:
    launch = start("--workers", "2", "--", "no-such-program-here")
    assert launch.wait() == 127
    assert "no such program: no-such-program-here" in launch.stderr


def test_no_such_server(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--", *worker(""), variables={"BYTEPS_SERVER_BINARY": "/nonexistent/server"})
    assert launch.wait() == 127
    assert "BYTEPS_SERVER_BINARY=/nonexistent/server: no such program" in launch.stderr


def test_arguments_reach_the_worker_as_they_are(start: Start, worker: Worker) -> None:
    show = worker("import sys, json\nprint(json.dumps(sys.argv[1:]))")
    launch = start("--workers", "1", "--", *show, "a b", "$HOME", "--workers", "9", "--", "*")
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == '[worker 0] ["a b", "$HOME", "--workers", "9", "--", "*"]\n'


def test_one_string_is_a_shell_line(start: Start) -> None:
    launch = start("echo one; echo two >&2; exit 4")
    assert launch.wait() == 4
    assert launch.stdout == "[worker 0] one\n"
    assert "[worker 0] two\n" in launch.stderr


def test_standard_input_goes_to_the_first_worker(start: Start, worker: Worker) -> None:
    read, write = os.pipe()
    os.write(write, b"from outside\n")
    os.close(write)
    launch = start("--workers", "2", "--", *worker("import sys\nprint(repr(sys.stdin.read()))"), stdin=read)
    os.close(read)
    assert launch.wait() == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == ["[worker 0] 'from outside\\n'", "[worker 1] ''"]


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize(
    "source, code, told",
    [
        ("raise SystemExit(0)", 0, ""),
        ("raise SystemExit(5)", 5, ""),
        ("import os; os.abort()", 128 + signal.SIGABRT, "abort ()"),
    ],
)
def test_under_gdb(start: Start, worker: Worker, source: str, code: int, told: str) -> None:
    command = [str(pathlib.Path(sys.executable).resolve()), *worker(source)[1:]]
    launch = start("--workers", "1", "--", *command, variables={"BYTEPS_ENABLE_GDB": "1"})
    assert launch.wait() == code, launch.stdout + launch.stderr
    assert told in launch.stdout


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_gdb_that_is_told_to_end_when_its_program_has_ended() -> None:
    """The signal at the end of a job comes as the program of a server ends, too."""
    variables = Environment({"BYTEPS_ENABLE_GDB": "1"})
    for _ in range(5):
        wait = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read(); sys.exit(3)"]
        command = in_debugger(wait, variables)
        pipe = subprocess.PIPE
        debugger = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert debugger.stdin is not None and debugger.stdout is not None
        assert any(line == "up\n" for line in debugger.stdout)
        debugger.stdin.close()
        while process_tree.descendants(debugger.pid):
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(debugger.pid, signal.SIGTERM)
        assert debugger.wait(30) == 3, debugger.stdout.read()


def test_trace_folders(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    launch = start(
        *["--workers", "2", "--", *worker(SHOW)],
        variables={"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": str(tmp_path / "timeline")},
    )
    assert launch.wait() == 0, launch.stderr
    assert (tmp_path / "timeline" / "0").is_dir() and (tmp_path / "timeline" / "1").is_dir()
    assert shown(launch)["[worker 1]"]["BYTEPS_TRACE_DIR"] == str(tmp_path / "timeline")


def test_pinning_by_hand(start: Start, worker: Worker) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    sections = f"{cpus[0]}:{cpus[-1]}"
    show = worker("import os\nprint(os.environ['BYTEPS_LOCAL_RANK'], sorted(os.sched_getaffinity(0)))")
    launch = start("--workers", "2", "--", *show, variables={"BYTEPS_VISIBLE_CPU_CORES": sections})
    assert launch.wait() == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == [f"[worker 0] 0 [{cpus[0]}]", f"[worker 1] 1 [{cpus[-1]}]"]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("over_hosts", [False, True])
def test_standard_streams_that_are_closed(
    start: Start, worker: Worker, tmp_path: pathlib.Path, closed: list[int], over_hosts: bool
) -> None:
    """As of a job that a daemon has started. The launcher's own pipes must not take their numbers."""
    seen = tmp_path / "seen"
    look = f"import os, sys; open({str(seen)!r}, 'w').write(os.readlink('/proc/self/fd/0')); print('hello')"

    def close() -> None:
        for number in closed:
            os.close(number)

    launch = start(
        *(["--hosts", "localhost"] if over_hosts else ["--workers", "1"]),
        *("--", *worker(f"{look}; print('hello', file=sys.stderr); sys.exit(3)")),
        preexec_fn=close,
    )
    assert launch.wait() == 3, launch.stderr
    assert seen.read_text() == "/dev/null"
    assert ("[worker 0] hello" in launch.stdout) == (1 not in closed)
    assert ("[worker 0] hello" in launch.stderr) == (2 not in closed)
    assert "Traceback" not in launch.stderr


def test_a_current_folder_that_is_gone(start: Start, tmp_path: pathlib.Path) -> None:
    def enter() -> None:
        folder = tmp_path / "gone"
        folder.mkdir()
        os.chdir(folder)
        folder.rmdir()

    over_hosts = start("--hosts", "localhost", "--", "true", preexec_fn=enter)
    assert over_hosts.wait() == 2 and "the current folder" in over_hosts.stderr, over_hosts.stderr
    assert "--directory" in over_hosts.stderr and "Traceback" not in over_hosts.stderr
    named = start("--hosts", "localhost", "--directory", "/", "--", "/bin/pwd", preexec_fn=enter)
    assert named.wait() == 0 and named.stdout == "[worker 0] /\n", named.stderr


def test_ctrl_c_before_there_was_anything_to_end(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    """The signal comes while modules are loading: here, in place of one of them."""
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt\n")
    launch = start("--", *worker(SHOW), variables={"PYTHONPATH": str(tmp_path)})
    assert launch.wait() == 130, launch.stderr
    assert launch.stderr == ""
