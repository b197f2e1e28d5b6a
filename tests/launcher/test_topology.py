"""Cores, nodes and network cards as /sys has them: of made-up hosts, and as hwloc reads the same files."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

import pytest

from launcher.topology import SYSTEM, Card, Node, cpu_list, parse_cpus, read_cards, read_nodes, usable


def make_nodes(root: pathlib.Path, nodes: Mapping[int, list[tuple[int, ...]]]) -> None:
    """Writes what Linux shows of such a host, as far as hwloc reads it."""
    system = root / "devices" / "system"
    everything = sorted(cpu for cores in nodes.values() for core in cores for cpu in core)
    (system / "cpu").mkdir(parents=True)
    for name in ("online", "possible", "present"):
        (system / "cpu" / name).write_text(cpu_list(everything) + "\n")
    number_of_core = 0
    for number, cores in nodes.items():
        folder = system / "node" / f"node{number}"
        folder.mkdir(parents=True)
        cpus = [cpu for core in cores for cpu in core]
        (folder / "cpulist").write_text(cpu_list(cpus) + "\n")
        (folder / "cpumap").write_text(mask(cpus) + "\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       1000000 kB\n")
        for core in cores:
            for cpu in core:
                topology = system / "cpu" / f"cpu{cpu}" / "topology"
                topology.mkdir(parents=True)
                # hwloc 2 asks for masks under their older names, too.
                for name, members in (("thread_siblings", core), ("core_siblings", cpus), ("core_cpus", core)):
                    (topology / name).write_text(mask(members) + "\n")
                    (topology / f"{name}_list").write_text(cpu_list(members) + "\n")
                (topology / "package_cpus").write_text(mask(cpus) + "\n")
                (topology / "core_id").write_text(f"{number_of_core}\n")
                (topology / "physical_package_id").write_text(f"{number}\n")
            number_of_core += 1
    (system / "node" / "online").write_text(cpu_list(nodes) + "\n")


def mask(cpus: list[int] | tuple[int, ...]) -> str:
    """As the kernel prints sets: words of 32 bits, the highest first."""
    value = sum(1 << cpu for cpu in cpus)
    return ",".join(f"{value >> (32 * word) & 0xFFFFFFFF:08x}" for word in reversed(range(max(cpus) // 32 + 1)))


def of_hwloc(root: pathlib.Path) -> dict[int, set[frozenset[int]]]:
    """The physical cores of each NUMA node, as lstopo sees them."""
    program = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
    if program is None:
        pytest.skip("lstopo is not here: Debian's package hwloc-nox")
    # Without the first one it would ask this machine's processor, too.
    fake = {"HWLOC_COMPONENTS": "linux,stop", **({} if root == SYSTEM else {"HWLOC_FSROOT": str(root.parent)})}
    words = [program, "--of", "xml", *(["--disallowed"] if root == SYSTEM else []), "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **fake})
    tree = ElementTree.fromstring(done.stdout)
    nodes = {each: parse_mask(each.get("cpuset", "")) for each in tree.iter("object") if each.get("type") == "NUMANode"}
    cores = [parse_mask(each.get("cpuset", "")) for each in tree.iter("object") if each.get("type") == "Core"]
    return {
        int(each.get("os_index", "0")): {core for core in cores if core <= cpus} for each, cpus in nodes.items() if cpus
    }


def parse_mask(text: str) -> frozenset[int]:
    value = 0
    for word in text.split(","):
        value = value << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def cores_of(nodes: list[Node]) -> dict[int, set[frozenset[int]]]:
    return {node.number: {frozenset(core) for core in node.cores} for node in nodes}


HOSTS = {
    "two nodes with hardware threads": {
        0: [(c, c + 8) for c in range(4)],
        1: [(c, c + 8) for c in range(4, 8)],
    },
    "neighbouring hardware threads": {0: [(0, 1), (2, 3)]},
    "nodes that are not numbered one after another": {1: [(4,), (5,)], 8: [(0,), (1,), (2,), (3,)]},
    "more processors than a word has bits": {n: [(c, c + 64) for c in range(16 * n, 16 * n + 16)] for n in range(4)},
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_as_hwloc_sees_it(name: str, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "host" / "sys"
    make_nodes(root, HOSTS[name])
    nodes = read_nodes(root)
    assert cores_of(nodes) == {number: {frozenset(core) for core in cores} for number, cores in HOSTS[name].items()}
    assert cores_of(nodes) == of_hwloc(root)


def test_this_host_as_hwloc_sees_it() -> None:
    ours, theirs = cores_of(read_nodes()), of_hwloc(SYSTEM)
    # To a node of memory alone hwloc gives the cores of the nodes around it.
    assert ours == {number: cores for number, cores in theirs.items() if number in ours}
    assert set().union(*ours.values()) == set().union(*theirs.values())


def test_a_node_of_memory_alone_is_left_out(tmp_path: pathlib.Path) -> None:
    make_nodes(tmp_path, {0: [(0,), (1,)]})
    empty = tmp_path / "devices" / "system" / "node" / "node1"
    empty.mkdir()
    (empty / "cpulist").write_text("\n")
    assert read_nodes(tmp_path) == [Node(0, [(0,), (1,)])]


def test_a_kernel_without_nodes(tmp_path: pathlib.Path) -> None:
    make_nodes(tmp_path, {0: [(0, 2), (1, 3)]})
    shutil.rmtree(tmp_path / "devices" / "system" / "node")
    assert read_nodes(tmp_path) == [Node(0, [(0, 2), (1, 3)])]


def test_what_may_be_used() -> None:
    nodes = [Node(0, [(0, 2), (1, 3)]), Node(1, [(4, 6), (5, 7)])]
    assert usable(nodes, {0, 1, 3, 9}) == [Node(0, [(0,), (1, 3)])]
    assert usable(nodes, range(8), multithreaded=False) == [Node(0, [(0,), (1,)]), Node(1, [(4,), (5,)])]
    assert usable([], {1, 2}) == [Node(0, [(1,), (2,)])], "a host that tells nothing"


def test_lists_of_cores() -> None:
    assert parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert parse_cpus(" 5 ") == {5}
    assert cpu_list([3, 0, 1, 2, 8]) == "0-3,8"
    for wrong in ("", "a", "1-", "-1", "1,,2"):
        with pytest.raises(ValueError):
            parse_cpus(wrong)


# ---- Network cards ----


def make_card(root: pathlib.Path, name: str, node: int | None, mbit: int | None, state: str = "up") -> None:
    """Writes what Linux shows of a card; `node` None: of an interface without a device."""
    folder = root / "class" / "net" / name
    folder.mkdir(parents=True)
    (folder / "operstate").write_text(state + "\n")
    if mbit is not None:
        (folder / "speed").write_text(f"{mbit}\n")
    if node is not None:
        (folder / "device").mkdir()
        (folder / "device" / "numa_node").write_text(f"{node}\n")


def make_rdma(root: pathlib.Path, name: str, interface: str, state: str = "4: ACTIVE") -> None:
    """Writes what Linux shows of an RDMA device with one port."""
    folder = root / "class" / "infiniband" / name
    (folder / "ports" / "1").mkdir(parents=True)
    (folder / "ports" / "1" / "state").write_text(state + "\n")
    (folder / "device" / "net" / interface).mkdir(parents=True)


def test_cards(tmp_path: pathlib.Path) -> None:
    make_card(tmp_path, "eth0", 0, 1000)
    make_card(tmp_path, "ib0", 1, 400000)
    make_card(tmp_path, "ib1", 1, 400000)
    make_card(tmp_path, "eth9", 1, -1)
    make_card(tmp_path, "down", 1, None, "down")
    make_card(tmp_path, "one-node", -1, None)
    make_card(tmp_path, "docker0", None, 10000)
    make_rdma(tmp_path, "mlx5_0", "ib0")
    make_rdma(tmp_path, "mlx5_1", "ib1", "1: DOWN")
    assert read_cards(tmp_path) == [
        Card("eth0", 0, 1000, rdma=False),
        Card("eth9", 1, 0, rdma=False),
        Card("ib0", 1, 400000, rdma=True),
        Card("ib1", 1, 400000, rdma=False),
        Card("one-node", None, 0, rdma=False),
    ]


def test_the_cards_of_this_host() -> None:
    assert "lo" not in [card.name for card in read_cards()]
