"""Which link netlab measures with a plain socket, with how many bytes and for how long at most; needs no lab."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace

import pytest
from lab import main as netlab
from lab.job import Layout
from lab.rates import payload_seconds

from launcher.failure import LaunchError
from launcher.output import Printer


class Measured:
    """In place of raw.measure."""

    def __call__(self, source: str, sink: str, size: int, limit: float = math.nan) -> float:
        self.link, self.size, self.limit = (source, sink), size, limit
        return 2.0


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    measured = Measured()
    monkeypatch.setattr(netlab.raw, "measure", measured)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return measured


def _measure(*words: str) -> None:
    arguments = netlab.parse_arguments(["run", *words, "true"])
    layout = Layout(arguments.hosts, arguments.servers, arguments.colocate)
    lab = SimpleNamespace(hosts={name: name for name in layout.hosts()})
    netlab._measure_raw(arguments, layout, lab, Printer("netlab"))


@pytest.mark.parametrize(
    ("words", "link"),
    [
        ([], ("worker0", "server1")),
        (["--colocate"], ("worker0", "worker1")),
        (["--slow", "worker0=20mbit"], ("worker1", "server1")),
        (["--slow", "server1=20mbit"], ("worker0", "server0")),
        (["--slow", "worker0=20mbit", "--slow", "worker1=20mbit"], ("server0", "server1")),
    ],
)
def test_the_link_is_one_that_is_not_slowed(
    measured: Measured, capfd: pytest.CaptureFixture[str], words: list[str], link: tuple[str, str]
) -> None:
    _measure("--rate", "200mbit", *words)
    assert (measured.link, measured.size) == (link, 20_000_000)
    assert os.environ["NETLAB_BYTES_PER_SECOND"] == "10000000.0"
    assert capfd.readouterr().err == (
        "netlab: raw socket: 20000000 bytes in 2.000 s (at 200 Mbit/s at least 0.836 s)\n"
    )


def test_a_slowed_link_is_named(measured: Measured, capfd: pytest.CaptureFixture[str]) -> None:
    _measure("--rate", "200mbit", "--colocate", "--slow", "worker1=20mbit", "--raw-bytes", "1000000")
    assert "raw socket from worker0 to worker1, a slowed link: 1000000 bytes" in (said := capfd.readouterr().err)
    assert "(at 20 Mbit/s at least 0.418 s)" in said


@pytest.mark.parametrize("rate", [1_000_000, 24_000_000, 100_000_000])
def test_a_slow_link_is_measured_with_what_it_carries_in_a_second_or_two(measured: Measured, rate: int) -> None:
    _measure("--rate", f"{rate}bit")
    assert 0.9 < payload_seconds(measured.size, rate) < 2


@pytest.mark.parametrize("rate", ["24mbit", "8mbit"])
def test_the_limit_follows_from_bytes_and_rate(measured: Measured, rate: str) -> None:
    _measure("--rate", rate, "--raw-bytes", "20000000")
    assert measured.size == 20_000_000
    assert measured.limit > 3 * 3 * payload_seconds(measured.size, netlab.parse_rate(rate))


@pytest.mark.parametrize("size", ["99999999999999", 400 * "9"])
@pytest.mark.parametrize("words", [[], ["--rate", "10gbit"]])
def test_what_would_take_hours_is_an_error(measured: Measured, words: list[str], size: str) -> None:
    with pytest.raises(LaunchError, match=f"--raw-bytes {size}: at most"):
        _measure(*words, "--raw-bytes", size)
