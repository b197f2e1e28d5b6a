"""bpslaunch --check: each thing that can be wrong, made wrong."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable

import pytest
from greeting_frame import frame
from launching import BPSLAUNCH, Launch, Service, Spawn, Start, free_port

CODE = """\
const char* bps_version_string(void) { return "%s"; }
int bps_transport_plugin_v1(void) { return 0; }
int bps_scheduler_plugin_v1(void) { return 0; }
"""
SERVER = "#!{python}\nprint('byteps_server 0.1.0 (control 1)')\n"

Check = Callable[..., Launch]


@pytest.fixture
def build(tmp_path: pathlib.Path) -> Callable[[str, str], pathlib.Path]:
    """Compiles a shared object that stands for a part of BytePS."""

    def make(name: str, code: str = CODE % "0.1.0") -> pathlib.Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=code.encode(), check=True)
        return path

    return make


@pytest.fixture
def check(start: Start, service: Service, build: Callable[..., pathlib.Path]) -> Check:
    """Runs `bpslaunch --check` where everything is in order, but for the variables given."""
    library = build("lib/libbyteps.so")
    build("lib/byteps/plugins/libbyteps_transport_tcp.so")
    build("lib/byteps/plugins/libbyteps_scheduler_credit.so")
    good = {"BYTEPS_LIBRARY": str(library), "BYTEPS_SERVER_BINARY": service(SERVER)}

    def run(*words: str, **variables: str) -> Launch:
        launch = start("--check", *words, variables={**good, **variables})
        launch.wait()
        assert "Traceback" not in launch.stderr
        return launch

    return run


def role(name: str, **variables: str) -> dict[str, str]:
    """The variables of one role in a job of two hosts on loopback."""
    port = free_port()
    meeting = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    place = {"DMLC_WORKER_ID": "0"} if name == "worker" else {}
    return {**meeting, **place, "DMLC_ROLE": name, "DMLC_PS_ROOT_PORT": str(port), **variables}


def finding(launch: Launch, subject: str) -> str:
    """The line of one check."""
    lines = [line for line in launch.stdout.splitlines() if re.match(rf"\w+ +{subject} ", line)]
    assert len(lines) == 1, launch.stdout
    return lines[0]


def test_all_is_well(check: Check) -> None:
    launch = check("--workers", "2", "--servers", "1", "--", "echo", "hi")
    assert launch.process.returncode == 0, launch.stdout
    assert launch.stdout.endswith(" 0 FAIL\n")
    for subject in [
        "counts",
        "cores",
        "command",
        "library",
        "server",
        "transport",
        "scheduler",
        "memlock",
        "port",
        "token",
    ]:
        assert re.match("ok|note", finding(launch, subject))
    assert "[worker" not in launch.stdout


@pytest.mark.parametrize("name", ["scheduler", "server", "worker"])
def test_all_is_well_with_a_role(check: Check, name: str) -> None:
    launch = check(**role(name))
    assert launch.process.returncode == 0, launch.stdout
    assert finding(launch, "route").startswith("ok")
    assert finding(launch, "token").startswith("ok")
    other = finding(launch, "port" if name == "scheduler" else "coordinator")
    assert "is free" in other if name == "scheduler" else "no coordinator listens yet" in other


@pytest.mark.parametrize(
    "subject, told, variables",
    [
        ("counts", "not set: DMLC_NUM_SERVER", {"DMLC_NUM_SERVER": ""}),
        ("counts", "DMLC_WORKER_ID=2: out of range", {"DMLC_WORKER_ID": "2"}),
        ("counts", "DMLC_NUM_WORKER=two: not a whole number", {"DMLC_NUM_WORKER": "two"}),
        ("cores", "not a list of cores", {"BYTEPS_VISIBLE_CPU_CORES": "x"}),
        ("library", "BYTEPS_LIBRARY", {"BYTEPS_LIBRARY": "/nonexistent/libbyteps.so"}),
        ("transport", "BYTEPS_TRANSPORT=tpc: no such plugin; sought: ", {"BYTEPS_TRANSPORT": "tpc"}),
        ("transport", "BYTEPS_TRANSPORT=verbs: no such plugin; sought: ", {"DMLC_ENABLE_RDMA": "ibverbs"}),
        ("transport", "DMLC_ENABLE_RDMA=UCX: there is no such transport here: take", {"DMLC_ENABLE_RDMA": "UCX"}),
        ("transport", "DMLC_ENABLE_RDMA=multivan: there is no such transport", {"DMLC_ENABLE_RDMA": "multivan"}),
        ("scheduler", "BYTEPS_SCHEDULER=/no/plugin.so: no such plugin", {"BYTEPS_SCHEDULER": "/no/plugin.so"}),
        ("interface", "DMLC_INTERFACE=eth77: no such interface. Interfaces here: lo", {"DMLC_INTERFACE": "eth77"}),
        ("address", "DMLC_NODE_HOST=192.0.2.77 is not an address of this host", {"DMLC_NODE_HOST": "192.0.2.77"}),
        (
            "route",
            "DMLC_PS_ROOT_URI=no-such-host.invalid",
            # Where a name server is configured and silent, the resolver would wait for it for long.
            {"DMLC_PS_ROOT_URI": "no-such-host.invalid", "RES_OPTIONS": "timeout:1 attempts:1"},
        ),
        ("token", "No such file", {"BYTEPS_JOB_TOKEN_FILE": "/nonexistent/token"}),
    ],
)
def test_what_is_wrong_is_named(check: Check, subject: str, told: str, variables: dict[str, str]) -> None:
    launch = check(**role("worker", **variables))
    assert launch.process.returncode == 1
    line = finding(launch, subject)
    assert line.startswith("FAIL") and told in line, line


@pytest.mark.parametrize("subject", ["library", "transport"])
def test_a_file_that_was_cut_off_is_named(check: Check, subject: str, tmp_path: pathlib.Path) -> None:
    parts = {"library": "lib/libbyteps.so", "transport": "lib/byteps/plugins/libbyteps_transport_tcp.so"}
    path = tmp_path / parts[subject]
    os.truncate(path, 6000)
    launch = check(**role("worker"))
    assert launch.process.returncode == 1
    line = finding(launch, subject)
    assert line.startswith("FAIL") and str(path) in line and ("cut off" in line or "too short" in line), line


def test_memory_that_may_be_locked(spawn: Spawn, service: Service, build: Callable[..., pathlib.Path]) -> None:
    library = build("lib/libbyteps.so")
    build("lib/byteps/plugins/libbyteps_transport_verbs.so")
    build("lib/byteps/plugins/libbyteps_scheduler_credit.so")
    variables = {
        **role("worker", BYTEPS_TRANSPORT="verbs"),
        "BYTEPS_LIBRARY": str(library),
        "BYTEPS_SERVER_BINARY": service(SERVER),
    }
    limited = 'ulimit -l 64; exec "$@"'
    if os.geteuid() == 0:  # root may lock any amount
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not here, which takes root the privilege to lock memory")
        limited = 'ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"'
    launch = spawn("bash", "-c", limited, "bash", *BPSLAUNCH, "--check", variables=variables)
    assert launch.wait() == 1
    assert finding(launch, "memlock").startswith(
        "FAIL  memlock     64 KiB is too little for verbs: `ulimit -l unlimited`"
    )


@pytest.mark.parametrize(
    "transport, kib, privileged, told",
    [
        ("tcp", 64, False, "ok    memlock     64 KiB; tcp locks no memory"),
        ("efa", (32 << 10) - 1, False, "FAIL  memlock     32767 KiB is too little for efa: "),
        ("efa", 32 << 10, False, "note  memlock     32768 KiB may be too little for efa and a large model: "),
        ("efa", 1 << 20, False, "ok    memlock     1048576 KiB"),
        ("efa", 64, True, "ok    memlock     unlimited"),
    ],
)
def test_how_much_memory_is_enough(
    monkeypatch: pytest.MonkeyPatch, transport: str, kib: int, privileged: bool, told: str
) -> None:
    from launcher import installation_checks

    monkeypatch.setattr(installation_checks.resource, "getrlimit", lambda _: (kib << 10, kib << 10))
    monkeypatch.setattr(installation_checks, "_may_lock_without_limit", lambda: privileged)
    assert installation_checks._check_memlock(transport).line().startswith(told)


def test_the_scheduler_is_the_first_that_is_installed(check: Check, tmp_path: pathlib.Path) -> None:
    plugins = tmp_path / "lib" / "byteps" / "plugins"
    (plugins / "libbyteps_scheduler_credit.so").rename(plugins / "libbyteps_scheduler_fifo.so")
    assert finding(check(**role("worker")), "scheduler").startswith("ok    scheduler   fifo: ")
    assert finding(check(**role("worker", BYTEPS_SCHEDULER="Auto")), "scheduler").startswith("ok")
    assert finding(check(**role("worker", BYTEPS_SCHEDULER="credit")), "scheduler").startswith("FAIL")
    (plugins / "libbyteps_scheduler_fifo.so").unlink()
    assert finding(check(**role("worker")), "scheduler").startswith("FAIL")


def test_wrong_numbers_of_a_job(check: Check) -> None:
    launch = check("--workers", "2", "--servers", "0", BYTEPS_FORCE_DISTRIBUTED="1")
    assert launch.process.returncode == 1
    assert "contradicts BYTEPS_FORCE_DISTRIBUTED=1" in finding(launch, "counts")


NO_CORES = "not usable here: cores [9999]"
NO_GPUS = "CUDA_VISIBLE_DEVICES=0 has 1 GPUs for 2 workers"


@pytest.mark.parametrize(
    "words, variables, said",
    [
        (["--servers", "1"], {"BYTEPS_SERVER_CPU_CORES": "9999"}, f"BYTEPS_SERVER_CPU_CORES=9999: {NO_CORES}"),
        ([], {"BYTEPS_VISIBLE_CPU_CORES": "0:9999"}, f"BYTEPS_VISIBLE_CPU_CORES=0:9999: {NO_CORES}"),
        ([], {"BYTEPS_IO_CPU_CORES": "9999"}, f"BYTEPS_IO_CPU_CORES=9999: {NO_CORES}"),
        ([], {"BYTEPS_SET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, NO_GPUS),
    ],
)
@pytest.mark.parametrize("hosts", [["--hosts", "localhost:2"], ["--workers", "2"]], ids=["hosts", "here"])
def test_cores_and_gpus_that_the_job_would_not_have(
    check: Check, start: Start, hosts: list[str], words: list[str], variables: dict[str, str], said: str
) -> None:
    """What the job says, the check says before it."""
    job = start(*hosts, *words, "--", "true", variables=variables)
    assert job.wait() == 2 and said in job.stderr, job.stderr
    launch = check(*hosts, *words, "--", "true", **variables)
    assert launch.process.returncode == 1
    failures = [line for line in launch.stdout.splitlines() if line.startswith("FAIL")]
    assert sum(said in line for line in failures) == 1, launch.stdout


@pytest.mark.parametrize(
    "words, variables, said",
    [
        (["--colocate"], role("worker", BYTEPS_SERVER_CPU_CORES="9999"), NO_CORES),
        ([], role("server", BYTEPS_SERVER_CPU_CORES="9999"), NO_CORES),
        ([], role("server", BYTEPS_SERVER_CPU_CORES="0:0"), "expected one list: DMLC_ROLE=server is one server"),
    ],
)
def test_cores_that_a_role_would_not_have(check: Check, words: list[str], variables: dict[str, str], said: str) -> None:
    launch = check(*words, **variables)
    assert launch.process.returncode == 1 and said in finding(launch, "cores"), launch.stdout


def test_no_such_command(check: Check) -> None:
    launch = check("--workers", "2", "--", "no-such-program-here")
    assert launch.process.returncode == 1
    assert "no such program: no-such-program-here" in finding(launch, "command")


def test_versions_differ(check: Check, service: Service) -> None:
    other = service("#!{python}\nprint('byteps_server 0.2.0')\n")
    launch = check("--workers", "2", BYTEPS_SERVER_BINARY=other)
    assert launch.process.returncode == 1
    assert "library 0.1.0, server 0.2.0" in finding(launch, "versions")


def test_a_server_without_version(check: Check, service: Service) -> None:
    launch = check("--workers", "2", BYTEPS_SERVER_BINARY=service("#!{python}\nraise SystemExit(1)\n"))
    assert launch.process.returncode == 1
    assert "tells no version" in finding(launch, "server")


def test_broken_plugin(check: Check, build: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    build("mine/libbyteps_transport_empty.so", "int nothing;")
    (tmp_path / "mine" / "libbyteps_transport_text.so").write_text("not a shared object")
    for name, told in (("empty", "it has no bps_transport_plugin_v1"), ("text", "invalid ELF header|file too short")):
        launch = check(
            "--workers", "2", "--servers", "1", BYTEPS_TRANSPORT=name, BYTEPS_PLUGIN_PATH=str(tmp_path / "mine")
        )
        assert launch.process.returncode == 1
        assert re.search(told, finding(launch, "transport"))


def test_port_in_use(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        job = check("--workers", "2", "--port", port)
        by_hand = check(**role("scheduler", DMLC_PS_ROOT_PORT=port))
    for launch in (job, by_hand):
        assert launch.process.returncode == 1
        assert f"127.0.0.1:{port}: Address already in use" in finding(launch, "port")


def test_the_root_is_elsewhere(check: Check) -> None:
    launch = check(**role("scheduler", DMLC_PS_ROOT_URI="192.0.2.77"))
    assert launch.process.returncode == 1
    assert "192.0.2.77 is no address of this host" in finding(launch, "port")


def test_no_token_off_loopback(check: Check) -> None:
    # Nothing is sent to this address: its port is checked last, and on this host.
    launch = check(**role("scheduler", DMLC_PS_ROOT_URI="192.0.2.77"))
    assert finding(launch, "token").startswith("FAIL")
    launch = check(**role("scheduler", DMLC_PS_ROOT_URI="192.0.2.77", BYTEPS_ALLOW_UNAUTHENTICATED="1"))
    assert finding(launch, "token").startswith("note")
    launch = check(**role("scheduler", DMLC_PS_ROOT_URI="192.0.2.77", BYTEPS_JOB_TOKEN="x" * 32))
    assert finding(launch, "token").startswith("ok")


def test_a_token_that_others_can_read(check: Check, tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 32)
    for mode, start_of_line in ((0o644, "note"), (0o600, "ok")):
        token.chmod(mode)
        launch = check("--workers", "2", BYTEPS_JOB_TOKEN_FILE=str(token))
        assert finding(launch, "token").startswith(start_of_line)
    token.write_text("\n")
    both = check("--workers", "2", BYTEPS_JOB_TOKEN_FILE=str(token), BYTEPS_JOB_TOKEN="x" * 32)
    assert "are set: unset one" in finding(both, "token")
    assert "is empty" in finding(check("--workers", "2", BYTEPS_JOB_TOKEN_FILE=str(token)), "token")


@pytest.mark.parametrize(
    "words, told",
    [
        (frame(b"0.1.0"), "ok .* answers: release 0.1.0, wants the job's token"),
        (frame(b"0.9.0"), "FAIL .* is release 0.9.0, we are 0.1.0"),
        (frame(b"0.1.0", b"HTTP"), "FAIL .* it does not speak the control protocol"),
        (frame(b"0.1.0")[:-5], "FAIL .* it closed the connection without a greeting"),
        (b"BPSC\1\0\0\0\2\0\0\0\x0a\x55", "FAIL .* its greeting cannot be read"),
        (b"BPSC\1\0\0\0\0\0\0\0", "FAIL .* its greeting is incomplete"),
        (b"", "FAIL .* it closed the connection without a greeting"),
        (bytes(range(64)), "FAIL .* it does not speak the control protocol"),
    ],
)
def test_who_answers(check: Check, greeter: Callable[[bytes], int], words: bytes, told: str) -> None:
    launch = check(**role("worker", DMLC_PS_ROOT_PORT=str(greeter(words))))
    assert re.search(told, finding(launch, "coordinator"))
    assert launch.process.returncode == (0 if told.startswith("ok") else 1)


def test_an_output_that_takes_nothing(start: Start) -> None:
    read, write = os.pipe()
    os.close(read)
    closed = start("--check", "--workers", "2", stdout=write)
    os.close(write)
    assert closed.wait() == 128 + signal.SIGPIPE
    with open("/dev/full", "wb") as full:
        launch = start("--check", "--workers", "2", stdout=full)
    assert launch.wait() == 1
    assert "the output cannot be written: No space left on device" in launch.stderr
    assert "Traceback" not in closed.stderr + launch.stderr


def test_more_of_a_kind_than_there_can_be(check: Check) -> None:
    for words, found in (
        (("--workers", "65537"), "--workers 65537"),
        (("--servers", "99999999"), "--servers 99999999"),
    ):
        launch = check(*words)
        assert launch.wait() == 1
        assert f"{found}: a host has at most 65536 of them" in launch.stdout
