"""How often the bytes of a tensor cross the busiest link of a lab, as bounds of bps_perf and raw times have it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "tools")]

from lab.job import Layout

from launcher.failure import LaunchError


def busiest(workers: int, dedicated: int, colocated_share: float) -> float:
    """Of the links in one direction, with servers on the hosts of workers that hold this much of all tensors together.

    The host of a worker sends what its own server does not hold, and the results of what that holds to the others; a
    dedicated server sends its results to all.
    """
    own = colocated_share / workers
    links = [1 - own + own * (workers - 1)]
    if dedicated > 0:
        links.append((1 - colocated_share) / dedicated * workers)
    return max(links)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("dedicated", [0, 1, 2, 4, 8, 32])
def test_colocated_no_shares_are_better(workers: int, dedicated: int) -> None:
    shares = [1.0] if dedicated == 0 else [share / 10_000 for share in range(10_001)]
    best = min(busiest(workers, dedicated, share) for share in shares)
    assert Layout(workers, dedicated, True).optimum() == pytest.approx(best, rel=0.002, abs=1e-9)


@pytest.mark.parametrize(
    ("workers", "servers", "crossings"), [(2, 2, 1), (4, 4, 1), (8, 8, 1), (8, 4, 2), (3, 2, 1.5), (2, 8, 1), (1, 1, 1)]
)
def test_dedicated_servers_need_as_many_links_as_workers(workers: int, servers: int, crossings: float) -> None:
    assert Layout(workers, servers).optimum() == pytest.approx(crossings)


def test_the_figures_of_the_documentation() -> None:
    # docs/performance/slow_links.md: T_opt of 8 colocated servers, alone and beside four dedicated ones.
    assert Layout(8, 0, True).optimum() == pytest.approx(1.75)
    assert Layout(8, 4, True).optimum() == pytest.approx(112 / 88)


def test_names_and_ranks_of_hosts() -> None:
    layout = Layout(2, 1, True)
    assert layout.server_hosts() == ["worker0", "worker1", "server2"]
    assert layout.hosts() == ["worker0", "worker1", "server2"]
    assert layout.total_servers == 3
    assert Layout(2, 1).hosts() == ["worker0", "worker1", "server0"]
    with pytest.raises(LaunchError, match="no servers"):
        Layout(2, 0).check()
