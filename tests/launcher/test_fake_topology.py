"""Cores by the topology of the host: one that is not this one's, mounted over /sys."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from launching import BPSLAUNCH, Spawn, need_own_network
from test_topology import make_card

from launcher.topology import parse_cpus


def fake(folder: pathlib.Path, nodes: list[list[list[int]]]) -> None:
    """A tree such as /sys/devices/system: nodes of physical cores of logical ones."""
    for number, cores in enumerate(nodes):
        node = folder / "node" / f"node{number}"
        node.mkdir(parents=True)
        node.joinpath("cpulist").write_text(",".join(str(cpu) for core in cores for cpu in core) + "\n")
        for core in cores:
            for cpu in core:
                topology = folder / "cpu" / f"cpu{cpu}" / "topology"
                topology.mkdir(parents=True)
                topology.joinpath("thread_siblings_list").write_text(",".join(map(str, core)) + "\n")


def cores(spawn: Spawn, folder: pathlib.Path, workers: int, role: str = "worker", **variables: str) -> list[str]:
    """Where the processes of a role would run, by --dry-run; "" where they are not pinned."""
    script = "; ".join(f"mount --bind {folder}/{kind} /sys/devices/system/{kind}" for kind in ("node", "cpu"))
    command = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh", *BPSLAUNCH, "--dry-run"]
    size = ["--workers", str(workers), "--servers", "1"]
    variables["BYTEPS_SERVER_BINARY"] = "true"
    launch = spawn(*command, *size, "--", sys.executable, "--version", variables=variables)
    assert launch.wait() == 0, launch.stderr
    lines = re.findall(rf"^\[{role}(?: \d+)?\] (.*)$", launch.stdout, re.MULTILINE)
    return [found[1] if (found := re.search(r"taskset -c (\S+)", line)) else "" for line in lines]


@pytest.fixture
def two_cores() -> list[int]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("a topology of another host needs root and mount namespaces")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("one core only")
    return usable[:2]


def test_each_worker_has_cores_of_one_node(spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int]) -> None:
    first, second = two_cores
    fake(tmp_path / "two", [[[first]], [[second]]])
    assert cores(spawn, tmp_path / "two", 2) == [str(first), str(second)]
    assert cores(spawn, tmp_path / "two", 2, BYTEPS_NUMA_ON="0") == ["", ""]
    assert cores(spawn, tmp_path / "two", 1, BYTEPS_CPU_BLACKLIST=str(first)) == [str(second)]


def test_one_node_is_left_alone(spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int]) -> None:
    first, second = two_cores
    fake(tmp_path / "one", [[[first], [second]]])
    assert cores(spawn, tmp_path / "one", 2) == ["", ""]
    assert cores(spawn, tmp_path / "one", 2, BYTEPS_NUMA_ON="1") == [str(first), str(second)]


def test_hardware_threads(spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int]) -> None:
    first, second = two_cores
    fake(tmp_path / "smt", [[[first, second]]])
    both = f"{first}-{second}" if second == first + 1 else f"{first},{second}"
    assert cores(spawn, tmp_path / "smt", 1, BYTEPS_NUMA_ON="1") == [both]
    assert cores(spawn, tmp_path / "smt", 1, BYTEPS_MULTITHREADED_CPU="0") == [str(first)]


def test_servers_have_what_pinned_workers_leave(spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int]) -> None:
    first, second = two_cores
    fake(tmp_path / "two", [[[first]], [[second]]])
    by_hand = {"BYTEPS_VISIBLE_CPU_CORES": str(first)}
    (server,) = cores(spawn, tmp_path / "two", 1, "server", **by_hand)
    assert second in parse_cpus(server) and first not in parse_cpus(server)
    assert cores(spawn, tmp_path / "two", 1, "coordinator", **by_hand) == [server]
    # Where workers have all cores, or are not pinned, servers run anywhere.
    if len(os.sched_getaffinity(0)) == 2:
        assert cores(spawn, tmp_path / "two", 2, "server") == [""]
    assert cores(spawn, tmp_path / "two", 1, "server", BYTEPS_NUMA_ON="0") == [""]


def test_by_hand(spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int]) -> None:
    first, second = two_cores
    fake(tmp_path / "two", [[[first]], [[second]]])
    by_hand = f"{second}:{first}"
    assert cores(spawn, tmp_path / "two", 2, BYTEPS_VISIBLE_CPU_CORES=by_hand) == [str(second), str(first)]


NETWORK = """\
ip link add eth0 type veth peer name far0
ip link add eth1 type veth peer name far1
for n in 0 1; do
  ip addr add 10.91.0.$((n + 1))/24 dev eth$n
  ip link set eth$n up; ip link set far$n up
done
ip link set lo up
"""
# What comes from the second card's address goes out by it.
RULE = "ip rule add from 10.91.0.2 table 91; ip route add 10.91.0.0/24 dev eth1 table 91\n"


@pytest.mark.parametrize("rule, expected", [(RULE, ["", "eth1"]), ("", ["", ""])])
def test_the_network_card_of_the_same_node(
    spawn: Spawn, tmp_path: pathlib.Path, two_cores: list[int], rule: str, expected: list[str]
) -> None:
    need_own_network(NETWORK + RULE, ["ip"])
    fake(tmp_path / "two", [[[cpu]] for cpu in two_cores])
    for number in (0, 1):
        make_card(tmp_path / "two", f"eth{number}", number, 100_000)
    mounts = "".join(
        f"mount --bind {tmp_path}/two/{ours} /sys/{theirs}\n"
        for ours, theirs in (
            ("node", "devices/system/node"),
            ("cpu", "devices/system/cpu"),
            ("class/net", "class/net"),
        )
    )
    words = ["unshare", "--mount", "--net", "sh", "-ec", f'{mounts}{NETWORK}{rule}exec "$@"', "sh", *BPSLAUNCH]
    variables = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    variables |= {"DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "10.91.0.9", "DMLC_PS_ROOT_PORT": "9000"}
    launch = spawn(*words, "--dry-run", "true", variables=variables)
    assert launch.wait() == 0, launch.stderr
    lines = [line for line in launch.stdout.splitlines() if line.startswith("[worker 0.")]
    found = [re.search(r" DMLC_INTERFACE=(\S+)", line) for line in lines]
    assert [each[1] if each else "" for each in found] == expected, launch.stdout
