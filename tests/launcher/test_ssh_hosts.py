"""`bpslaunch --hosts`: whole jobs over several hosts, by real ssh."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, Launch, Spawn, wait_until
from ssh_hosts import SshHosts

TRAINER = [sys.executable, str(pathlib.Path(__file__).with_name("trainer.py"))]
SMALL = "1000"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 3) as hosts:
        yield hosts


@pytest.fixture
def launch(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    """Starts bpslaunch where the user sits."""

    def run(*words: str, variables: dict[str, str] | None = None) -> Launch:
        options = ["--ssh-args", hosts.ssh_args, *words]
        return spawn(*hosts.here, *BPSLAUNCH, *options, variables={**real, **(variables or {})})

    yield run
    hosts.wait_empty()


def test_a_job(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    words = ["--hosts", "lh1:2,lh2:2", "--server-hosts", "lh3", "--output-dir", str(tmp_path / "out")]
    job = launch(*words, "--", *TRAINER, "5", "1000000")
    assert job.wait() == 0, job.stderr
    assert job.stderr == "", "quiet: progress and errors only"
    for rank in range(4):
        name = f"worker {rank // 2}.{rank % 2}"
        assert f"[{name}] rank {rank} of 4, local {rank % 2} of 2" in job.stdout
        assert f"[{name}] done" in job.stdout
        assert "round 4" in (tmp_path / "out" / f"{name.replace(' ', '')}.stdout").read_text()


def test_servers_share_the_hosts_of_workers_by_default(launch: Callable[..., Launch]) -> None:
    job = launch("--hosts", "lh1,lh2", "--verbose", "--", *TRAINER, "2", SMALL)
    assert job.wait() == 0, job.stderr
    for name, host in (("coordinator", "lh1"), ("server 0", "lh1"), ("server 1", "lh2"), ("worker 1.0", "lh2")):
        assert any(
            line.startswith(f"bpslaunch: {name}: pid ") and line.endswith(f"on host {host}")
            for line in job.stderr.splitlines()
        ), job.stderr


def test_output_with_the_names_of_hosts(launch: Callable[..., Launch]) -> None:
    words = ["--hosts", "lh1,lh2", "--coordinator", "lh3", "--host-names", "--timestamps", "--verbose"]
    job = launch(*words, "--", *TRAINER, "1", SMALL)
    assert job.wait() == 0, job.stderr
    for rank in range(2):
        line = rf"^\d{{4}}-\d\d-\d\d [\d:.]{{12}} \[worker {rank}\.0 on lh{rank + 1}\] rank {rank} of 2, local 0 of 1"
        assert re.search(line, job.stdout, re.MULTILINE), job.stdout
    assert re.search(r"coordinator: pid \d+ on host lh3$", job.stderr, re.MULTILINE), job.stderr


def test_a_hostfile_and_one_host(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nlh2 slots=3\n")
    job = launch("--hostfile", str(tmp_path / "hosts"), "--workers", "2", "--", *TRAINER, "2", SMALL)
    assert job.wait() == 0, job.stderr
    assert "[worker 1] rank 1 of 2, local 1 of 2" in job.stdout


def test_servers_on_worker_hosts_too(launch: Callable[..., Launch]) -> None:
    job = launch("--hosts", "lh1,lh2", "--server-hosts", "lh3", "--colocate", "--verbose", "--", *TRAINER, "2", SMALL)
    assert job.wait() == 0, job.stderr
    for name, host in (("server 0", "lh3"), ("server 1", "lh1"), ("server 2", "lh2")):
        assert re.search(rf"{name}: pid \d+ on host {host}$", job.stderr, re.MULTILINE), job.stderr


def test_a_key_of_its_own(spawn: Spawn, hosts: SshHosts, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """ssh's configuration names none: --ssh-identity does."""
    config = hosts.config.read_text().replace("IdentityFile ", "# IdentityFile ")
    (tmp_path / "config").write_text(config)
    words = ["--ssh-args", f"-F {tmp_path}/config", "--hosts", "lh1,lh2"]
    trainer = ["--", *TRAINER, "1", SMALL]
    refused = spawn(*hosts.here, *BPSLAUNCH, *words, *trainer, variables=real)
    assert refused.wait() != 0 and "Permission denied" in refused.stderr and "--ssh-identity" in refused.stderr
    identity = ["--ssh-identity", str(hosts.config.parent / "user")]
    job = spawn(*hosts.here, *BPSLAUNCH, *words, *identity, *trainer, variables=real)
    assert job.wait() == 0, job.stderr
    hosts.wait_empty()


def test_a_port_of_its_own(spawn: Spawn, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """The daemons listen at another port than 22: --ssh-port, or the files of BytePS, name it."""
    with SshHosts(tmp_path, 3, port=2222) as hosts:
        (tmp_path / "workers").write_text("lh1:2222\nlh2:2222\n")
        (tmp_path / "servers").write_text("lh3:2222\n")
        files = ["-WH", str(tmp_path / "workers"), "-SH", str(tmp_path / "servers")]
        there = [*hosts.here, *BPSLAUNCH, "--ssh-args", hosts.ssh_args]
        refused = spawn(*there, "--hosts", "lh1,lh2", "--", *TRAINER, "1", SMALL, variables=real)
        assert refused.wait() != 0 and "no ssh daemon listens there" in refused.stderr, refused.stderr
        check = spawn(*there, "--check", "--ssh-port", "2222", "--hosts", "lh1,lh2", variables=real)
        assert check.wait() == 0 and "2 hosts ok, 0 FAIL" in check.stdout, check.stdout + check.stderr
        last = ["--scheduler-ip", hosts[2].address, "--scheduler-ssh-port", "2222"]
        for words in (["--ssh-port", "2222", "--hosts", "lh1,lh2"], files, [*files, *last]):
            job = spawn(*there, *words, "--", *TRAINER, "1", SMALL, variables=real)
            assert job.wait() == 0, job.stderr
            assert job.stdout.count("done") == 2, job.stdout
        hosts.wait_empty()


def test_the_arguments_of_byteps(launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path) -> None:
    (tmp_path / "workers").write_text("lh1:22\nlh2\n")
    (tmp_path / "servers").write_text("lh3:22\n")
    words = ["-WH", str(tmp_path / "workers"), "-SH", str(tmp_path / "servers"), "--scheduler-ip", hosts[1].address]
    words += ["--scheduler-port", "9123", "--username", "root", "--env", "MINE:a b", "--interface", "eth0"]
    show = "import os; print(os.environ['MINE'], os.environ['DMLC_PS_ROOT_PORT'], os.environ['DMLC_INTERFACE'])"
    # In BytePS the command of a host begins with bpslaunch.
    shown = launch(*words, "bpslaunch", sys.executable, "-c", show)
    assert shown.wait() == 0, shown.stderr
    assert "[worker 1.0] a b 9123 eth0" in shown.stdout
    job = launch(*words, "bpslaunch", *TRAINER, "2", SMALL)
    assert job.wait() == 0, job.stderr


@pytest.mark.parametrize("named", ["lh2", "root@10.231.7.2", "[10.231.7.2]"])
def test_how_the_coordinators_address_is_written(launch: Callable[..., Launch], hosts: SshHosts, named: str) -> None:
    """A name of ssh's, which no host knows, and what is written around an address."""
    words = ["--hosts", "lh1,lh2", "--scheduler-ip", named]
    show = "import os; print('at', os.environ['DMLC_PS_ROOT_URI'])"
    job = launch(*words, "--", sys.executable, "-c", show)
    assert job.wait() == 0, job.stderr
    assert job.stdout.count(f"at {hosts[1].address}\n") == 2, job.stdout
    check = launch("--check", *words)
    assert check.wait() == 0, check.stdout


def test_the_long_arguments_of_byteps(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    """In both files the number is a port of ssh."""
    (tmp_path / "workers").write_text("lh1:22\nlh2:22\n")
    (tmp_path / "servers").write_text("lh3:22\n")
    words = ["--worker-hostfile", str(tmp_path / "workers"), "--server-hostfile", str(tmp_path / "servers")]
    words += ["--scheduler-ssh-port", "22", "--env", "BYTEPS_LOCAL_SIZE:1", "--verbose"]
    job = launch(*words, "bpslaunch", *TRAINER, "1", SMALL)
    assert job.wait() == 0, job.stderr
    assert re.findall(r"server \d+: pid \d+ on host (\S+)$", job.stderr, re.MULTILINE) == ["lh3"]


def test_from_one_of_the_hosts(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> None:
    """The own host is reached without ssh, and by the others at its address in their network."""
    there = ["nsenter", f"--net=/run/netns/{hosts[0].namespace}", *BPSLAUNCH, "--ssh-args", hosts.ssh_args]
    check = spawn(*there, "--check", "--hosts", "localhost,lh2", "--port", "9123", variables=real)
    assert check.wait() == 0, check.stdout + check.stderr
    rows = {line.split()[0]: line for line in check.stdout.splitlines()}
    assert hosts[0].address in rows["localhost"] and "1 of 1" in rows["localhost"] and "9123 free" in rows["localhost"]
    assert "1 of 1" in rows["lh2"] and "free" not in rows["lh2"]
    job = spawn(*there, "--hosts", "localhost,lh2", "--", *TRAINER, "2", SMALL, variables=real)
    assert job.wait() == 0, job.stderr
    assert "[worker 1.0] rank 1 of 2" in job.stdout


def test_from_one_of_the_hosts_by_a_user_who_came_by_ssh(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> None:
    """That connection has come by another network than the job's: its addresses say nothing of the job's hosts."""
    there = ["nsenter", f"--net=/run/netns/{hosts[0].namespace}", *BPSLAUNCH, "--ssh-args", hosts.ssh_args]
    variables = {**real, "SSH_CONNECTION": "203.0.113.9 50022 198.51.100.7 22"}
    job = spawn(*there, "--hosts", "localhost,lh2", "--", *TRAINER, "2", SMALL, variables=variables)
    assert job.wait() == 0, job.stderr
    check = spawn(*there, "--check", "--hosts", "localhost,lh2", variables=variables)
    assert check.wait() == 0, check.stdout + check.stderr


def test_no_secret_on_a_command_line(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    secret = "a secret of the tests, long enough"
    show = (
        "import glob\nfor f in glob.glob('/proc/[0-9]*/cmdline'):\n  print(open(f, 'rb').read().replace(b'\\0', b' '))"
    )
    job = launch("--hosts", "lh1,lh2", "--", sys.executable, "-c", show, variables={"BYTEPS_JOB_TOKEN": secret})
    assert job.wait() == 0, job.stderr
    assert "--agent" in job.stdout and "coordinator" not in job.stdout
    assert secret not in job.stdout
    words = b"".join(path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"))
    assert secret.encode() not in words


def test_the_failure_of_a_worker_is_that_of_the_job(launch: Callable[..., Launch]) -> None:
    fail = "import os, sys, time\nif os.environ['DMLC_WORKER_ID'] == '1': sys.exit('no such data')\ntime.sleep(1000)"
    started = time.monotonic()
    job = launch("--hosts", "lh1,lh2", "--", sys.executable, "-c", fail)
    assert job.wait() == 1
    assert time.monotonic() - started < 30
    assert "worker 1.0 (host lh2, pid " in job.stderr and "no such data" in job.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(launch: Callable[..., Launch], hosts: SshHosts, number: signal.Signals) -> None:
    job = launch("--hosts", "lh1,lh2", "--", *TRAINER, "0", SMALL)
    job.wait_for("round 2", 2)
    job.process.send_signal(number)
    assert job.wait(20) == 128 + number
    hosts.wait_empty(1)


# ---- What is wrong from the beginning ----


def test_what_is_wrong_is_said_with_the_host(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    never = [sys.executable, "-c", "print('trains')"]
    cases: list[tuple[list[str], str]] = [
        (["--hosts", "lh1,nowhere"], "host nowhere could not be reached"),
        (["--hosts", "lh1,10.231.7.99"], "host 10.231.7.99 could not be reached"),
        (["--hosts", "lh1,lh2", "--ssh-user", "nobody"], "Permission denied"),
        (["--hosts", "lh1,lh2", "--ssh-port", "23"], "no ssh daemon listens there"),
        (["--hosts", "lh1:2,lh1:2"], "lh1 is there twice"),
        (["--hosts", "lh1:2,lh2", "--workers", "4"], "places for 3: lh1: 2, lh2: 1"),
        (["--hosts", "lh1,lh2", "--server-hosts", "lh3", "--servers", "2"], "places for 1"),
        (["--hosts", "lh1,lh2", "--directory", "/no/such"], "cannot work in /no/such"),
        (["--hosts", "lh1,lh2", "--remote-bpslaunch", "/no/bpslaunch"], "not installed at the same place"),
        (["--hosts", "lh1,lh2", "--port", "22"], "host lh1: cannot listen at 10.231.7.1:22"),
    ]
    for words, said in cases:
        job = launch(*words, "--", *never)
        assert job.wait(60) != 0, words
        assert said in job.stderr, f"{words}: {job.stderr}"
        assert "trains" not in job.stdout
    wait_until(lambda: not hosts.processes(), lambda: str(hosts.processes()), 10)


def test_check_of_all_hosts(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    check = launch("--check=network", "--hosts", "lh1,lh2", "--server-hosts", "lh3", "--", *TRAINER, "1", SMALL)
    assert check.wait() == 0, check.stdout + check.stderr
    rows = {line.split()[0]: line for line in check.stdout.splitlines()}
    for host in (hosts[0], hosts[1], hosts[2]):
        row = rows[host.name]
        assert host.address in row and "eth0" in row and "2 of 2" in row and row.rstrip().endswith("Gbit/s")
    assert "3 hosts ok, 0 FAIL" in check.stdout
    headings = re.split(r"  +", check.stdout.splitlines()[0].rstrip())
    cells = dict(zip(headings, re.split(r"  +", rows["lh2"].rstrip())))
    assert cells["python"] == ".".join(map(str, sys.version_info[:3])), check.stdout


# It begins when there are three of its kind, one on each host: one after another they would not.
TOGETHER = """\
import os, runpy, socket, sys, time
open(os.path.join({folder!r}, socket.gethostname()), "w").close()
deadline = time.monotonic() + 60
while len(os.listdir({folder!r})) < 3:
    if time.monotonic() > deadline:
        sys.exit("alone")
    time.sleep(0.02)
sys.argv[0] = {launcher!r}
runpy.run_path({launcher!r}, run_name="__main__")
"""


@pytest.mark.parametrize("check", [True, False])
def test_hosts_begin_side_by_side(launch: Callable[..., Launch], tmp_path: pathlib.Path, check: bool) -> None:
    (tmp_path / "began").mkdir()
    agent = tmp_path / "agent.py"
    agent.write_text(TOGETHER.format(folder=str(tmp_path / "began"), launcher=BPSLAUNCH[1]))
    words = ["--remote-bpslaunch", f"{sys.executable} {agent}", "--hosts", "lh1,lh2", "--server-hosts", "lh3"]
    job = launch(*words, *(["--check"] if check else []), "--", *TRAINER, "1", SMALL)
    assert job.wait() == 0, job.stdout + job.stderr
    assert ("3 hosts ok, 0 FAIL" if check else "done") in job.stdout, job.stdout


def test_check_names_what_is_wrong(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    deaf = ["nsenter", f"--net=/run/netns/{hosts[1].namespace}", "ip", "route"]
    rule = ["unreachable", f"{hosts[2].address}/32"]
    subprocess.run([*deaf, "add", *rule], check=True)
    try:
        check = launch("--check", "--hosts", "lh1,lh2,nowhere", "--server-hosts", "lh3", "--", "no-such-program")
        assert check.wait() == 1
    finally:
        subprocess.run([*deaf, "del", *rule], check=True)
    assert "FAIL  lh2: cannot reach lh3" in check.stdout, check.stdout
    assert "FAIL  lh1: command: no such program: no-such-program" in check.stdout
    assert "FAIL  nowhere: could not be reached" in check.stdout
    assert "0 hosts ok, 4 FAIL" in check.stdout, check.stdout
    taken = launch("--check", "--hosts", "lh1,lh2", "--port", "22", "--", *TRAINER)
    assert taken.wait() == 1 and "22 FAIL" in taken.stdout, taken.stdout
    assert f"FAIL  lh1: port: {hosts[0].address}:22: Address already in use" in taken.stdout, taken.stdout


OLD = """\
import json, struct, sys
text = json.dumps({"event": "hello", "version": 1, "release": "0.0.1", "time": 0}).encode()
sys.stdout.buffer.write(b"\\0byteps-agent\\nM" + struct.pack("!I", len(text)) + text)
sys.stdout.buffer.flush()
sys.stdin.read()
"""


def test_another_release(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    job = launch("--hosts", "lh1,lh2", "--remote-bpslaunch", f"{sys.executable} {tmp_path}/old.py", "--", "true")
    assert job.wait(60) == 1
    assert ": release 0.0.1, we are" in job.stderr and "bpslaunch: host lh" in job.stderr
    assert re.search(r"host lh\d: its clock is \d+ s from ours", job.stderr)
