"""The cores of the workers, computed on made-up hosts."""

from __future__ import annotations

import os

import pytest

from launcher import affinity
from launcher.environment import Environment
from launcher.failure import LaunchError

# Two nodes of four physical cores with two hardware threads each.
NODES = [[(c, c + 8) for c in range(4)], [(c, c + 8) for c in range(4, 8)]]


def test_lists_of_cores() -> None:
    assert affinity.parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert affinity.parse_cpus(" 5 ") == {5}
    for wrong in ("", "a", "1-", "-1", "1,,2"):
        with pytest.raises(ValueError):
            affinity.parse_cpus(wrong)


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
    assert affinity.assign(Environment({"BYTEPS_NUMA_ON": "1"}), 10_000) == [None] * 10_000


def test_asked_for_on_this_host() -> None:
    usable = os.sched_getaffinity(0)
    plan = affinity.assign(Environment({"BYTEPS_NUMA_ON": "1"}), 1)
    assert plan[0] and plan[0] <= usable
    assert affinity.assign(Environment({"BYTEPS_NUMA_ON": "0", "BYTEPS_VISIBLE_CPU_CORES": "0"}), 1) == [None]


def test_forbidden_cores_are_not_given_out() -> None:
    first, *rest = sorted(os.sched_getaffinity(0))
    plan = affinity.assign(Environment({"BYTEPS_CPU_BLACKLIST": str(first)}), 1)
    assert plan == ([None] if not rest else plan) and (plan[0] is None or first not in plan[0])


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
    ],
)
def test_errors_name_the_variable(variables: dict[str, str], told: str) -> None:
    with pytest.raises(LaunchError) as error:
        affinity.assign(Environment(variables), 2)
    assert told in str(error.value)


def test_threads() -> None:
    assert affinity.threads(None, 1) is None
    assert affinity.threads(None, 10_000) == 1
    one = frozenset(list(os.sched_getaffinity(0))[:1])
    assert affinity.threads(one, 2) == 1
