"""Who runs on which cores, computed on made-up hosts."""

from __future__ import annotations

import os

import pytest

from launcher import affinity
from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.topology import Node

# Two nodes of four physical cores with two hardware threads each.
NODES = [[(c, c + 8) for c in range(4)], [(c, c + 8) for c in range(4, 8)]]


@pytest.mark.parametrize("workers, size", [(1, 8), (2, 8), (4, 4), (8, 2), (3, 4)])
def test_equal_shares_stay_within_a_node(workers: int, size: int) -> None:
    plan = affinity.share(NODES, workers, None, None)
    assert [len(cpus) for cpus in plan] == [size] * workers
    assert sum(map(len, plan)) == len(frozenset().union(*plan)), "no core is given twice"
    for cpus in plan:
        assert any(cpus <= {cpu for core in node for cpu in core} for node in NODES)


def test_neighbours_share_a_node() -> None:
    plan = affinity.share(NODES, 4, None, None)
    first = {cpu for core in NODES[0] for cpu in core}
    assert [cpus <= first for cpus in plan] in ([True, True, False, False], [False, False, True, True])


def test_quotas() -> None:
    plan = affinity.share(NODES, 3, 1, 4)
    assert [len(cpus) for cpus in plan] == [2, 2, 8]
    plan = affinity.share(NODES, 3, None, 4)
    assert [len(cpus) for cpus in plan] == [4, 4, 8]
    assert affinity.share(NODES, 3, 4, None) is None
    assert affinity.share(NODES, 2, None, 5) is None


def test_fewer_cores_than_workers_are_left_alone() -> None:
    assert affinity.share(NODES, 9, None, None) is None
    assert affinity.share([], 1, None, None) is None
    assert affinity.assign(Environment({"BYTEPS_NUMA_ON": "1"}), 10_000).workers == [None] * 10_000


def test_asked_for_on_this_host() -> None:
    usable = os.sched_getaffinity(0)
    (cpus,) = affinity.assign(Environment({"BYTEPS_NUMA_ON": "1"}), 1).workers
    assert cpus and cpus <= usable
    off = affinity.assign(Environment({"BYTEPS_NUMA_ON": "0", "BYTEPS_VISIBLE_CPU_CORES": "0"}), 1)
    assert off.workers == off.io == [None] and not off.pinned


def test_forbidden_cores_are_not_given_out() -> None:
    first, *rest = sorted(os.sched_getaffinity(0))
    (cpus,) = affinity.assign(Environment({"BYTEPS_CPU_BLACKLIST": str(first)}), 1).workers
    assert cpus is None if not rest else first not in cpus


@pytest.mark.parametrize(
    "variables, told",
    [
        ({"BYTEPS_VISIBLE_CPU_CORES": "0"}, "1 sections for 2 workers"),
        ({"BYTEPS_VISIBLE_CPU_CORES": "0:x"}, "'x' is not a list of cores"),
        ({"BYTEPS_VISIBLE_CPU_CORES": "0:99999"}, "not usable here: cores [99999]"),
        ({"BYTEPS_CPU_BLACKLIST": "x"}, "BYTEPS_CPU_BLACKLIST=x: not a list of cores"),
        ({"BYTEPS_NUMA_DEFAULT_QUOTA": "99999"}, "2 workers do not fit"),
        ({"BYTEPS_NUMA_DEFAULT_QUOTA": "0"}, "BYTEPS_NUMA_DEFAULT_QUOTA=0: out of range"),
        ({"BYTEPS_NUMA_ON": "perhaps"}, "BYTEPS_NUMA_ON=perhaps: expected 0 or 1"),
        ({"BYTEPS_IO_CPU_CORES": "0,x"}, "BYTEPS_IO_CPU_CORES=0,x: '0,x' is not a list of cores"),
        ({"BYTEPS_IO_CPU_CORES": "99999"}, "BYTEPS_IO_CPU_CORES=99999: not usable here: cores [99999]"),
        ({"BYTEPS_SERVER_CPU_CORES": "0:0"}, "BYTEPS_SERVER_CPU_CORES=0:0: 2 sections for 3 servers"),
    ],
)
def test_errors_name_the_variable(variables: dict[str, str], told: str) -> None:
    with pytest.raises(LaunchError) as error:
        affinity.assign(Environment(variables), 2, 3)
    assert told in str(error.value)


# ---- Workers, the library's threads in them, and servers ----

# Two nodes of sixteen physical cores with two hardware threads each: core c has the CPUs c and c + 32.
LARGE = [Node(number, [(c, c + 32) for c in range(16 * number, 16 * number + 16)]) for number in (0, 1)]
# A desktop: one node of eight.
SMALL = [Node(0, [(c,) for c in range(8)])]


def disjoint(plan: affinity.CorePlan) -> bool:
    """Whether no CPU has two uses."""
    used = [*plan.workers, *plan.io, *{cpus for cpus in (*plan.servers, plan.coordinator) if cpus}]
    known = [cpus for cpus in used if cpus]
    return sum(map(len, known)) == len(frozenset().union(*known))


@pytest.mark.parametrize("workers, physical, io", [(2, 14, 2), (4, 7, 1), (1, 14, 2)])
def test_the_threads_of_the_library_have_cores_of_their_own(workers: int, physical: int, io: int) -> None:
    plan = affinity.assign(Environment({}), workers, nodes=LARGE)
    assert [len(cpus) for cpus in plan.workers] == [2 * physical] * workers
    assert [len(cpus) for cpus in plan.io] == [2 * io] * workers
    assert disjoint(plan)
    for cpus, apart in zip(plan.workers, plan.io):
        assert any(cpus | apart <= node.cpus for node in LARGE), "on the node of its worker"
    assert [affinity.threads(plan, rank) for rank in range(workers)] == [physical] * workers


def test_servers_beside_workers_have_as_many_again() -> None:
    plan = affinity.assign(Environment({}), 4, 2, nodes=LARGE)
    assert [len(cpus) for cpus in plan.workers] == [12] * 4 and [len(cpus) for cpus in plan.io] == [2] * 4
    assert disjoint(plan) and plan.servers == [plan.coordinator] * 2
    assert len(plan.coordinator) == 64 - 4 * 14 and plan.of_servers == plan.coordinator


def test_few_cores_are_left_to_the_training() -> None:
    plan = affinity.assign(Environment({}), 8, 1, nodes=LARGE)
    assert [len(cpus) for cpus in plan.workers] == [8] * 8 and plan.io == [None] * 8
    assert plan.servers == [None], "nothing is left: anywhere"
    plan = affinity.assign(Environment({}), 2, 1, nodes=SMALL)
    assert plan.workers == plan.io == [None, None], "one NUMA node: not pinned"


def test_what_quotas_leave_is_used() -> None:
    plan = affinity.assign(Environment({"BYTEPS_NUMA_DEFAULT_QUOTA": "3"}), 2, 1, nodes=SMALL)
    assert [len(cpus) for cpus in plan.workers] == [3, 3] and plan.io == [None, None], "two cores for three uses"
    assert plan.servers == [frozenset({6, 7})]
    plan = affinity.assign(Environment({"BYTEPS_NUMA_DEFAULT_QUOTA": "3"}), 2, nodes=SMALL)
    assert plan.io == [frozenset({6}), frozenset({7})]
    plan = affinity.assign(Environment({"BYTEPS_NUMA_DEFAULT_QUOTA": "2"}), 2, 1, nodes=SMALL)
    assert [len(cpus) for cpus in plan.io] == [1, 1] and len(plan.coordinator) == 2 and disjoint(plan)
    # So many cores were asked for.
    plan = affinity.assign(Environment({"BYTEPS_NUMA_DEFAULT_QUOTA": "16"}), 2, 1, nodes=LARGE)
    assert [len(cpus) for cpus in plan.workers] == [32, 32] and plan.io == [None, None]


def test_cores_by_hand_are_the_only_ones() -> None:
    by_hand = {"BYTEPS_VISIBLE_CPU_CORES": "0-3:16-19"}
    plan = affinity.assign(Environment(by_hand), 2, 1, nodes=LARGE)
    assert plan.workers == [frozenset(range(4)), frozenset(range(16, 20))] and plan.io == [None, None]
    assert disjoint(plan) and len(plan.coordinator) == 64 - 8
    plan = affinity.assign(Environment({**by_hand, "BYTEPS_IO_CPU_CORES": "4:20"}), 2, 1, nodes=LARGE)
    assert plan.io == [frozenset({4}), frozenset({20})] and disjoint(plan)


def test_cores_of_threads_and_servers_by_hand() -> None:
    by_hand = {"BYTEPS_IO_CPU_CORES": "0,32", "BYTEPS_SERVER_CPU_CORES": "1-2:17-18"}
    plan = affinity.assign(Environment(by_hand), 2, 2, nodes=LARGE)
    assert plan.io == [frozenset({0, 32})] * 2
    assert plan.servers == [frozenset({1, 2}), frozenset({17, 18})]
    given = frozenset({0, 32, 1, 2, 17, 18})
    assert all(cpus and not cpus & given for cpus in plan.workers), "workers have what is left"
    alone = affinity.assign(Environment(by_hand), 0, 2, nodes=LARGE)
    assert alone.servers == plan.servers and alone.workers == []


def test_one_hardware_thread_of_each_core() -> None:
    plan = affinity.assign(Environment({"BYTEPS_MULTITHREADED_CPU": "0"}), 2, nodes=LARGE)
    assert [len(cpus) for cpus in plan.workers] == [14, 14] and [len(cpus) for cpus in plan.io] == [2, 2]
    assert max(plan.io[1]) < 32 and disjoint(plan)


def test_threads_of_workers_that_are_not_pinned() -> None:
    assert affinity.threads(affinity.assign(Environment({}), 1, nodes=SMALL), 0) is None
    assert affinity.threads(affinity.assign(Environment({}), 2, nodes=SMALL), 0) == 4
    assert affinity.threads(affinity.assign(Environment({}), 10_000, nodes=SMALL), 0) == 1
