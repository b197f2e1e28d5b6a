"""IPv4 and IPv6: a job meets where its root address says, on hosts that have the one, the other, or both.

In network namespaces of their own, with a file /etc/hosts of their own: names resolve there as the test says.
"""

from __future__ import annotations

import pathlib
import socket
import sys
import time

import pytest
from launching import BPSLAUNCH, OWN_NETWORK, Launch, Spawn, Worker, free_port, need_own_network, needs_package

LINK_UP = "ip link set lo up"
WITHOUT_IPV4 = f"{LINK_UP} && ip addr del 127.0.0.1/8 dev lo"
WITHOUT_IPV6 = f"{LINK_UP} && echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6"
# Far below BYTEPS_START_TIMEOUT, after which a member gives up by itself.
SOON = 60


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    need_own_network(f"{WITHOUT_IPV6} && {LINK_UP}", programs=["ip"])


class Host:
    """A host whose loopback interface has the addresses that `prepare` leaves it, and whose names are `names`."""

    def __init__(self, spawn: Spawn, folder: pathlib.Path, prepare: str, names: str) -> None:
        self._spawn = spawn
        hosts = folder / "hosts"
        hosts.write_text(names)
        self._script = f'mount --bind {hosts} /etc/hosts && {prepare} && exec "$@"'

    def run(self, *words: str, variables: dict[str, str]) -> Launch:
        return self._spawn(*OWN_NETWORK, "--mount", "sh", "-ec", self._script, "sh", *words, variables=variables)


# On the host: what its loopback interface has, how "localhost" resolves there, and the root addresses that work.
BOTH = ("127.0.0.1 localhost\n::1 localhost\n", LINK_UP)
ONLY_IPV6 = ("::1 localhost\n", WITHOUT_IPV4)
ONLY_IPV4 = ("::1 localhost\n127.0.0.1 localhost\n", WITHOUT_IPV6)
WORKS = [
    pytest.param(BOTH, "::1", id="both-::1"),
    pytest.param(BOTH, "localhost", id="both-name"),
    pytest.param(("::1 localhost\n", LINK_UP), "localhost", id="both-name_of_ipv6"),
    pytest.param(ONLY_IPV6, "::1", id="ipv6-::1"),
    pytest.param(ONLY_IPV6, "localhost", id="ipv6-name"),
    pytest.param(ONLY_IPV4, "127.0.0.1", id="ipv4-127.0.0.1"),
    pytest.param(ONLY_IPV4, "localhost", id="ipv4-name"),
]

# A job of two worker hosts by hand, all on this one.
BY_HAND = """\
import os, subprocess, sys
launch, trainer = sys.argv[1], sys.argv[2]
roles = [("scheduler", None), ("server", None), ("worker", 0), ("worker", 1)]
started = []
for role, host in roles:
    variables = {**os.environ, "DMLC_ROLE": role}
    if host is not None:
        variables["DMLC_WORKER_ID"] = str(host)
    command = [sys.executable, trainer, "2", "1000"] if host is not None else []
    started.append(subprocess.Popen([sys.executable, launch, *command], env=variables))
codes = [process.wait() for process in started]
print("codes", codes)
sys.exit(max(codes))
"""


def _by_hand(root: str) -> dict[str, str]:
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "BYTEPS_JOB_TOKEN": "a secret of the tests, long enough",
        "BYTEPS_JOB_LINGER": "0",
        "BYTEPS_START_TIMEOUT": "100",
    }


@pytest.mark.parametrize("host, root", WORKS)
def test_roles_by_hand(
    spawn: Spawn, tmp_path: pathlib.Path, real: dict[str, str], host: tuple[str, str], root: str
) -> None:
    script = tmp_path / "by_hand.py"
    script.write_text(BY_HAND)
    trainer = pathlib.Path(__file__).with_name("trainer.py")
    launch = Host(spawn, tmp_path, host[1], host[0]).run(
        BPSLAUNCH[0], str(script), BPSLAUNCH[1], str(trainer), variables={**real, **_by_hand(root)}
    )
    assert launch.wait() == 0, launch.stdout + launch.stderr


@pytest.mark.parametrize("host, root", WORKS)
def test_the_check_of_a_role(
    spawn: Spawn, tmp_path: pathlib.Path, real: dict[str, str], host: tuple[str, str], root: str
) -> None:
    launch = Host(spawn, tmp_path, host[1], host[0]).run(
        *BPSLAUNCH, "--check", variables={**real, **_by_hand(root), "DMLC_ROLE": "scheduler"}
    )
    launch.wait()
    address = "127.0.0.1" if host is ONLY_IPV4 or (host is BOTH and root == "localhost") else "::1"
    assert f"to {root} goes out from {address}" in launch.stdout
    shown = f"[{address}]" if address == "::1" else address
    found = [line for line in launch.stdout.splitlines() if line.split()[1] == "port"]
    assert len(found) == 1 and found[0].startswith("ok ") and f" {shown}:" in found[0] and "is free" in found[0]


@pytest.mark.parametrize("host", [BOTH, ONLY_IPV6, ONLY_IPV4], ids=["both", "ipv6", "ipv4"])
@pytest.mark.parametrize("root", [None, "::1"])
def test_a_whole_job(
    spawn: Spawn,
    tmp_path: pathlib.Path,
    worker: Worker,
    real: dict[str, str],
    host: tuple[str, str],
    root: str | None,
) -> None:
    """It meets where it can."""
    print_root = worker("import os; print('at', os.environ['DMLC_PS_ROOT_URI'])")
    variables = {**real, **({} if root is None else {"DMLC_PS_ROOT_URI": root})}
    machine = Host(spawn, tmp_path, host[1], host[0])
    launch = machine.run(*BPSLAUNCH, "--workers", "2", "--", *print_root, variables=variables)
    assert launch.wait() == 0, launch.stdout + launch.stderr
    ipv6 = host is ONLY_IPV6 or (host is BOTH and root == "::1")
    assert launch.stdout.count("at ::1" if ipv6 else "at 127.0.0.1") == 2
    check = machine.run(*BPSLAUNCH, "--check", "--workers", "2", "--", *print_root, variables=variables)
    check.wait()
    address = "::1" if ipv6 else "127.0.0.1"
    for finding in (f"{address} can be reached", f"a port at {address} is free"):
        assert finding in check.stdout, check.stdout + check.stderr


def test_a_port_that_is_taken_on_ipv6(spawn: Spawn, worker: Worker, real: dict[str, str]) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        variables = {**real, "DMLC_PS_ROOT_URI": "::1"}
        launch = spawn(*BPSLAUNCH, "--workers", "2", "--port", str(port), "--", *worker("pass"), variables=variables)
        assert launch.wait() == 1
        assert f"cannot listen at [::1]:{port}: Address already in use" in launch.stderr


def test_a_root_of_ipv6_on_a_host_without(
    spawn: Spawn, tmp_path: pathlib.Path, worker: Worker, real: dict[str, str]
) -> None:
    """Said at once: the members would try until the start timeout."""
    began = time.monotonic()
    variables = {**real, **_by_hand("::1"), "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_START_TIMEOUT": "300"}
    launch = Host(spawn, tmp_path, WITHOUT_IPV6, "").run(*BPSLAUNCH, *worker("pass"), variables=variables)
    assert launch.wait() == 1
    assert time.monotonic() - began < SOON
    assert "::1 cannot be reached: " in launch.stderr
    assert "no IPv6 on its loopback interface; set DMLC_PS_ROOT_URI=127.0.0.1" in launch.stderr


@pytest.mark.parametrize("address, prefix", [("10.55.0.1", 24), ("fd55::1", 64)])
def test_the_interface_of_an_address(spawn: Spawn, address: str, prefix: int) -> None:
    """As the table of --check shows it."""
    make = f"ip link add v1 type veth peer name v2; ip addr add {address}/{prefix} dev v1 nodad; ip link set v1 up"
    need_own_network(make, programs=("ip", "sh"))
    neighbour = address[:-1] + "2"
    checkout = str(pathlib.Path(__file__).resolve().parents[2])
    load = f"import sys; sys.path.insert(0, {checkout!r}); from launcher.remote.probe import own_interface"
    program = [sys.executable, "-c", f"{load}; print(own_interface({neighbour!r}))"]
    launch = spawn(*OWN_NETWORK, "sh", "-ec", f'{make}; ip link set v2 up; exec "$@"', "sh", *program)
    assert launch.wait() == 0, launch.stderr
    assert f"'address': '{address}', 'interface': 'v1'" in launch.stdout, launch.stdout


def test_an_interface_that_is_down(spawn: Spawn) -> None:
    """It keeps its address, at which nobody is reached, and so does one whose other end is not connected."""
    make = "ip link set lo up" + "".join(
        f"; ip link add {name}1 type veth peer name {name}2; ip addr add 10.55.{number}.1/24 dev {name}1"
        for number, name in enumerate(("down", "loose", "up"))
    )
    make += "; ip link set loose1 up; ip link set up1 up; ip link set up2 up"
    need_own_network(make, programs=("ip", "sh"))
    checkout = str(pathlib.Path(__file__).resolve().parents[2])
    load = f"import sys; sys.path.insert(0, {checkout!r}); from launcher.environments.addresses import own_networks"
    program = [sys.executable, "-c", f"{load}; print(own_networks(), own_networks('down1'), own_networks('none'))"]
    # The kernel tells of a connection a little later.
    wait = "until ip link show up1 | grep -q 'state UP'; do :; done"
    launch = spawn(*OWN_NETWORK, "sh", "-ec", f'{make}; {wait}; exec "$@"', "sh", *program)
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "['10.55.2.1/24'] ['10.55.0.1/24'] []\n", launch.stdout


RUNS = """\
import os, byteps
assert byteps.run(os.getcwd, hosts="localhost:2") == [os.getcwd()] * 2
print("ran")
"""


@needs_package
@pytest.mark.parametrize("own", ["fd00:1::1", "10.1.0.1"], ids=["ipv6", "ipv4"])
def test_a_function_as_a_job_over_hosts(spawn: Spawn, tmp_path: pathlib.Path, own: str) -> None:
    """Its workers come to their caller by the protocol that its host has beside loopback."""
    names = f"127.0.0.1 localhost\n{own} {socket.gethostname()}\n"
    host = Host(spawn, tmp_path, f"{LINK_UP} && ip addr add {own} dev lo", names)
    job = host.run(sys.executable, "-c", RUNS, variables={})
    assert job.wait(SOON) == 0, job.stderr
    assert job.stdout == "ran\n"
