"""bps_perf as `netlab run` starts it: what it makes of the links that netlab has measured, what the links of its
servers carry, and whom it names. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.job import Layout
from perf.bound import at_the_end, bound
from perf.model import read_model

ROOT = Path(__file__).resolve().parents[2]
NETLAB = [sys.executable, str(ROOT / "tools" / "netlab.py"), "run"]
SECONDS = 300.0
_FOREIGN = ("DMLC_", "BYTEPS_", "NETLAB_", "PS_")


class Ended:
    """What a run has said."""

    def __init__(self, words: list[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        done = subprocess.run(
            [*NETLAB, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,  # netlab is killed, and everything ends with it
            check=False,
        )
        self.said = f"out:\n{done.stdout}\nerr:\n{done.stderr}"
        assert done.returncode == 0, self.said
        lines = (line.removeprefix("[worker 0.0] ") for line in done.stdout.splitlines())
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
        self._err = done.stderr

    def raw(self) -> float:
        """Bytes per second of the plain socket, as printed."""
        found = re.search(r"raw socket: (\d+) bytes in ([\d.]+) s", self._err)
        assert found is not None, self.said
        return int(found[1]) / float(found[2])

    def carried(self, host: str) -> tuple[int, int]:
        """Bytes sent and received by the link of this host."""
        found = re.search(rf"link of {host}: sent (\d+) bytes, received (\d+) bytes", self._err)
        assert found is not None, self.said
        return int(found[1]), int(found[2])

    def slow(self) -> list[str]:
        """The servers in the line of bps_perf itself."""
        return re.findall(r"server \d+", "".join(re.findall(r"\[worker 0\.0\] bps_perf: slow: .*", self._err)))


Run = Callable[..., Ended]


@pytest.fixture
def run(namespaces: None) -> Run:
    pytest.importorskip("torch")
    pytest.importorskip("byteps")
    return lambda *words: Ended(list(words))


# 6.4 MB in 161 tensors.
_SHRINK, _SECONDS_OF_STEP, _STEPS, _WARM_UP = 16, 0.05, 3, 1
_REPLAY = ["bps_perf", "--model", "resnet50", "--shrink", str(_SHRINK), "--compute", str(_SECONDS_OF_STEP)]
_REPLAY += ["--steps", str(_STEPS), "--warm-up", str(_WARM_UP), "--json"]
_LINKS = ["--rate", "200mbit", "--raw-bytes", "2000000", "--counters"]


def check_bounds(done: Ended, layout: Layout) -> None:
    """They are those of the links that netlab has measured, however fast these were."""
    model = read_model("resnet50").shrunk(_SHRINK).lasting(_SECONDS_OF_STEP)
    ring = 2 * (layout.workers - 1) / layout.workers
    for row in done.rows:
        gloo = row["by"] == "gloo"
        least = at_the_end(model, ring / done.raw()) if gloo else bound(model, layout.optimum() / done.raw())
        assert row["bound_s"] == pytest.approx(least, rel=0.02), done.said
        assert row["over_bound"] == pytest.approx(row["step_s"] / row["bound_s"] - 1), done.said


def test_the_links_of_servers_carry_alike(run: Run) -> None:
    """Counted at the switch, with all headers: within 5% of their share."""
    done = run("--hosts", "2", "--servers", "3", *_LINKS, "--", *_REPLAY, "--schedulers", "fifo,credit")
    assert [row["by"] for row in done.rows] == ["fifo", "credit"], done.said
    check_bounds(done, Layout(2, 3))
    links = [done.carried(f"server{rank}") for rank in range(3)]
    pushed = 2 * 2 * (_STEPS + _WARM_UP) * done.rows[0]["bytes"]  # by two workers, with two schedulers
    for side in (0, 1):
        share = sum(link[side] for link in links) / len(links)
        assert share > pushed / len(links), done.said
        for link in links:
            assert abs(link[side] / share - 1) < 0.05, done.said


def test_colocated_servers_and_buckets_of_gloo_have_bounds_of_their_own(run: Run) -> None:
    done = run("--hosts", "3", "--colocate", *_LINKS, "--", *_REPLAY, "--schedulers", "credit", "--against", "gloo")
    assert [row["by"] for row in done.rows] == ["credit", "gloo"], done.said
    layout = Layout(3, 0, True)
    check_bounds(done, layout)
    # Each link carries in each direction what the optimum says, and headers; a ring of three has the same.
    both = 2 * (_STEPS + _WARM_UP) * done.rows[0]["bytes"] * layout.optimum()
    for host in layout.worker_hosts():
        for carried in done.carried(host):
            assert both < carried < 1.2 * both, done.said


def test_hosts_on_loopback_sum_with_their_own_servers(run: Run) -> None:
    done = run(
        "--loopback",
        "--hosts",
        "3",
        "--colocate",
        "--",
        "bps_perf",
        "--sizes",
        "300000,3000000",
        "--rounds",
        "4",
        "--json",
    )
    assert [(row["bytes"], row["workers"], row["servers"], row["transport"]) for row in done.rows] == [
        (300_000, 3, 3, "tcp"),
        (3_000_000, 3, 3, "tcp"),
    ], done.said


def test_the_slow_server_is_named_with_the_results(run: Run) -> None:
    """It takes three windows of five seconds, so the job is as long; a round as long as the slow link needs."""
    done = run(
        *("--hosts", "2", "--servers", "8", "--rate", "80mbit", "--raw-bytes", "0", "--slow", "server5=8mbit"),
        *("--", "bps_perf", "--sizes", "3200K", "--rounds", "28", "--json"),
    )
    (row,) = done.rows
    assert (row["workers"], row["servers"]) == (2, 8), done.said
    assert done.slow() == ["server 5"], done.said
