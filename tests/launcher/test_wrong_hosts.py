"""What one host of several can have wrong: it is named before anything trains. By real ssh."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, TRAINER, Launch, Spawn
from ssh_hosts import SshHosts

NEVER = [sys.executable, "-c", "print('trains')"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 3) as hosts:
        yield hosts


@pytest.fixture
def launch(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    """Starts bpslaunch where the user sits."""

    def run(*words: str, **variables: str) -> Launch:
        options = ["--ssh-args", hosts.ssh_args, *words]
        return spawn(*hosts.here, *BPSLAUNCH, *options, variables={**real, **variables})

    yield run
    hosts.wait_empty()


def only_there(folder: pathlib.Path, host: str, source: str) -> list[str]:
    """Options with which the agent of one host begins with a piece of Python; the others are as they should be."""
    program = folder / "agent.py"
    program.write_text(
        f"import os, runpy, socket, sys\nif socket.gethostname() == {host!r}:\n"
        + "".join(f"    {line}\n" for line in source.splitlines())
        + f"sys.argv[0] = {BPSLAUNCH[1]!r}\nrunpy.run_path({BPSLAUNCH[1]!r}, run_name='__main__')\n"
    )
    return ["--remote-bpslaunch", f"{sys.executable} {program}"]


# It says who it is, as an agent does, and then waits.
OLD = """\
import json, struct
text = json.dumps({"event": "hello", "version": 1, "release": "0.0.1", "time": 0, "networks": []}).encode()
sys.stdout.buffer.write(b"\\0byteps-agent\\nM" + struct.pack("!I", len(text)) + text)
sys.stdout.buffer.flush()
sys.stdin.read()
sys.exit()
"""
LATE = "import time\nreal = time.time\ntime.time = lambda: real() + 7200"


def test_another_release_on_one_host(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    words = [*only_there(tmp_path, "lh2", OLD), "--hosts", "lh1,lh2", "--server-hosts", "lh3"]
    job = launch(*words, "--", *NEVER)
    assert job.wait() == 1
    assert re.search(r"host lh2: release 0\.0\.1, we are \S+: install one release everywhere", job.stderr), job.stderr
    assert not re.search(r"host lh[13]: release", job.stderr) and "trains" not in job.stdout
    check = launch("--check", *words)
    assert check.wait() == 1
    assert re.search(r"^FAIL  lh2: release 0\.0\.1, we are", check.stdout, re.MULTILINE), check.stdout
    assert "2 hosts ok, 1 FAIL" in check.stdout


def test_a_clock_that_is_hours_away(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    words = [*only_there(tmp_path, "lh2", LATE), "--hosts", "lh1,lh2"]
    job = launch(*words, "--", *TRAINER, "2", "1000")
    assert job.wait() == 0, job.stderr
    assert re.search(r"host lh2: its clock is 7(19|20)\d s from ours", job.stderr), job.stderr
    assert "host lh1: its clock" not in job.stderr
    check = launch("--check", *words)
    assert check.wait() == 1
    assert re.search(r"^FAIL  lh2: its clock is \+7(19|20)\d s from ours", check.stdout, re.MULTILINE), check.stdout


def test_a_program_that_is_not_there(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    words = [*only_there(tmp_path, "lh2", "os.environ['PATH'] = '/nowhere'"), "--hosts", "lh1,lh2"]
    job = launch(*words, "--env", "PATH=/nowhere", "--", "no-such-trainer")
    assert job.wait() == 127
    assert re.search(r"host lh[12]: .*no such program: no-such-trainer", job.stderr), job.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (["lh1,nowhere"], r"host nowhere could not be reached: ssh exited .* \(the name is unknown here"),
        (["lh1,10.231.7.99"], r"host 10\.231\.7\.99 could not be reached: .*the host is down, or a firewall"),
        (["lh1,10.99.9.9"], r"host 10\.99\.9\.9 could not be reached: .*this host has no route to it"),
        (["lh1,lh2", "--ssh-user", "nobody"], r"host lh[12] could not be reached: .*no password is asked for"),
        (["lh1,lh2", "--remote-bpslaunch", "/etc/passwd"], r"host lh[12] could not .* \(that user may not run BytePS"),
        (["lh1,lh2", "--ssh-port", "23"], r"host lh[12] could not be reached: .*no ssh daemon listens there"),
        (["lh1,lh2", "--port", "22"], r"host lh1: cannot listen at 10\.231\.7\.1:22: Address already in use"),
        (["lh1,lh2,lh1"], r"--hosts: lh1 is there twice"),
        (["lh1,lh2,10.231.7.1"], r"lh1 and 10\.231\.7\.1 are one host, lh1, which is there twice among .* workers"),
        (
            ["lh1,lh2", "--server-hosts", "lh3,10.231.7.3"],
            r"lh3 and 10\.231\.7\.3 are one host, lh3, which is there twice among the hosts of servers",
        ),
        (["lh1,lh2:2", "--workers", "4"], r"--workers 4: the hosts have places for 3: lh1: 1, lh2: 2"),
        (["lh1,lh2", "--server-hosts", "lh3", "--servers", "2"], r"--servers 2: the server hosts have places for 1"),
    ],
)
def test_it_is_named_with_its_host(launch: Callable[..., Launch], words: list[str], said: str) -> None:
    job = launch("--hosts", *words, "--", *NEVER)
    assert job.wait() != 0
    assert re.search(said, job.stderr), job.stderr
    assert "trains" not in job.stdout


def test_check_of_a_host_with_two_names(launch: Callable[..., Launch]) -> None:
    check = launch("--check", "--hosts", "lh1,10.231.7.1", "--server-hosts", "lh2")
    assert check.wait() == 1
    assert re.search(r"^FAIL  10\.231\.7\.1: lh1 and 10\.231\.7\.1 are one host", check.stdout, re.MULTILINE), (
        check.stdout
    )
    assert "2 hosts ok, 1 FAIL" in check.stdout


def test_check_of_the_folder_that_a_job_would_have(
    spawn: Spawn, hosts: SshHosts, real: dict[str, str], tmp_path: pathlib.Path
) -> None:
    """Without --directory the current one, which here no other host sees."""
    folder = tmp_path / "only_here"
    folder.mkdir()
    alone = [
        "unshare",
        "--mount",
        "sh",
        "-ec",
        f'mount -t tmpfs t {folder}; mkdir {folder}/w; cd {folder}/w; exec "$@"',
    ]
    words = [*hosts.here, *alone, "sh", *BPSLAUNCH, "--ssh-args", hosts.ssh_args, "--hosts", "lh1,lh2"]
    job = spawn(*words, "--", *NEVER, variables=real)
    assert job.wait() != 0
    assert f"cannot work in {folder}/w: No such file or directory" in job.stderr, job.stderr
    check = spawn(*words, "--check", variables=real)
    assert check.wait() == 1, check.stdout
    for host in ("lh1", "lh2"):
        assert f"FAIL  {host}: cannot work in {folder}/w: No such file or directory" in check.stdout, check.stdout
    hosts.wait_empty()


@pytest.mark.parametrize("known", ["before the link", "behind the link"])
def test_a_home_that_is_a_link_here_alone(
    spawn: Spawn, hosts: SshHosts, real: dict[str, str], tmp_path: pathlib.Path, known: str
) -> None:
    """The other hosts know the current folder and the launcher by one of two names; here both lead to them."""
    place, kept = tmp_path / "place", tmp_path / "kept"
    there = place / ("home" if known == "before the link" else "data") / "me"
    (there / "run").mkdir(parents=True)
    kept.mkdir()
    shutil.copytree(pathlib.Path(BPSLAUNCH[1]).parent, there / "launcher")
    linked = (
        f"mount --bind {there} {kept}; mount -t tmpfs t {place}; mkdir -p {place}/data/me; "
        f'mount --bind {kept} {place}/data/me; ln -s data {place}/home; cd {place}/home/me/run; exec "$@"'
    )
    words = ["--ssh-args", hosts.ssh_args, "--hosts", "lh1,lh2", "--servers", "1", "--", "/bin/pwd"]
    job = spawn(
        *hosts.here,
        *("unshare", "--mount", "sh", "-ec", linked, "sh"),
        *(BPSLAUNCH[0], f"{place}/home/me/launcher/launch.py"),
        *words,
        variables={**real, "HOME": f"{place}/home/me"},
    )
    assert job.wait() == 0, job.stderr
    assert job.stdout.count(f"{there}/run\n") == 2, job.stdout
    hosts.wait_empty()


def test_check_of_the_coordinators_address(
    launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path
) -> None:
    """That of --scheduler-ip, as for the job: a name of ssh's need not be an address of the host."""
    behind = f"Host 10.99.9.9\n  HostName {hosts[0].address}\n  HostKeyAlias lh1\n"
    (tmp_path / "config").write_text(behind + hosts.config.read_text())
    words = ["--ssh-args", f"-F {tmp_path}/config", "--hosts", "lh1,lh2", "--port", "9123", "--scheduler-ip"]
    job = launch(*words, "10.99.9.9", "--", *NEVER)
    assert job.wait() != 0
    assert "host 10.99.9.9: cannot listen at 10.99.9.9:9123" in job.stderr, job.stderr
    check = launch("--check", *words, "10.99.9.9")
    assert check.wait() == 1, check.stdout
    assert "FAIL  10.99.9.9: port: 10.99.9.9 is no address of this host" in check.stdout, check.stdout
    assert "2 hosts ok, 1 FAIL" in check.stdout, check.stdout
    fits = launch("--check", *words, hosts[0].address)
    assert fits.wait() == 0 and "9123 free" in fits.stdout, fits.stdout


def test_a_host_whose_key_is_not_known(launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path) -> None:
    """It may be another one than it was."""
    known = hosts.config.parent / "known"
    others = [line for line in known.read_text().splitlines() if not line.startswith("lh2,")]
    (tmp_path / "known").write_text("\n".join(others) + "\n")
    config = hosts.config.read_text().replace(str(known), str(tmp_path / "known"))
    (tmp_path / "config").write_text(config)
    job = launch("--ssh-args", f"-F {tmp_path}/config", "--hosts", "lh1,lh2", "--", *NEVER)
    assert job.wait() != 0
    assert "host lh2 could not be reached" in job.stderr and "its key is not known" in job.stderr, job.stderr
    assert "trains" not in job.stdout


def test_a_host_whose_key_is_another_one(
    launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path
) -> None:
    """To take it on trust would be wrong, and --ssh-args with accept-new does not."""
    known = hosts.config.parent / "known"
    other = " ".join((hosts.config.parent / "user.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(re.sub(r"^(lh2,\S+) .*$", rf"\1 {other}", known.read_text(), flags=re.MULTILINE))
    config = hosts.config.read_text().replace(str(known), str(tmp_path / "known"))
    (tmp_path / "config").write_text(config)
    job = launch("--ssh-args", f"-F {tmp_path}/config", "--hosts", "lh1,lh2", "--", *NEVER)
    assert job.wait() != 0
    assert "host lh2 could not be reached" in job.stderr and "its key is another one" in job.stderr, job.stderr
    assert "accept-new" not in job.stderr and "trains" not in job.stdout


def test_a_configuration_of_ssh_with_a_command(
    launch: Callable[..., Launch], hosts: SshHosts, tmp_path: pathlib.Path
) -> None:
    """As of who always wants to come into tmux."""
    (tmp_path / "config").write_text(hosts.config.read_text() + "  RemoteCommand tmux new -A\n  RequestTTY yes\n")
    arguments = f"-F {tmp_path}/config"
    job = launch("--ssh-args", arguments, "--hosts", "lh1,lh2", "--", *NEVER)
    assert job.wait() != 0
    assert "--ssh-args '-o RemoteCommand=none'" in job.stderr, job.stderr
    cured = launch("--ssh-args", f"{arguments} -o RemoteCommand=none", "--hosts", "lh1,lh2", "--", *TRAINER, "1", "10")
    assert cured.wait() == 0, cured.stderr


def test_hosts_that_do_not_reach_each_other(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    """ssh reaches both, but the second one has no route to the coordinator."""
    inside = ["nsenter", f"--net=/run/netns/{hosts[1].namespace}", "ip", "route"]
    rule = ["unreachable", f"{hosts[0].address}/32"]
    subprocess.run([*inside, "add", *rule], check=True)
    try:
        job = launch("--hosts", "lh1,lh2", "--", *NEVER)
        assert job.wait() != 0
    finally:
        subprocess.run([*inside, "del", *rule], check=True)
    assert f"host lh2: no route to the coordinator at {hosts[0].address}: No route to host" in job.stderr, job.stderr
    assert not re.search(r"^\[worker 1\.0\] trains", job.stdout, re.MULTILINE)
