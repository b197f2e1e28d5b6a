"""Hosts, their cables, and what can be done to these."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import Host, Lab, LabError, parse_rate, raw
from lab.lab import why_not_lose
from lab.rates import payload_seconds

SECONDS = 60.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 200_000_000), ("1gbit", 10**9), ("1.5Mbit/s", 1_500_000), ("8kbit", 8000)]
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "200", "mbit", "0mbit", "-1mbit", "1mbyte", "fast"])
def test_wrong_rates(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1bit", "0.9kbit", "100.1gbit", "99999999gbit"])
def test_rates_that_no_link_has(text: str) -> None:
    with pytest.raises(ValueError, match="between 1kbit and 100gbit"):
        parse_rate(text)


def test_every_host_is_one_of_its_own(lab: Lab) -> None:
    hosts = [lab.add_host("one"), lab.add_host("other")]
    identities = [
        host.run(["sh", "-c", "hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc"]).split()
        for host in hosts
    ]
    assert [identity[0] for identity in identities] == ["one", "other"]
    for own, other in zip(*identities):
        assert own != other
    assert str(Path("/proc/self/ns/net").readlink()) not in (identities[0][1], identities[1][1])
    # Nothing of it can be seen from here.
    assert "switch" not in subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout


def test_hosts_on_loopback_share_that_and_nothing_else(namespaces: None) -> None:
    identity = ["sh", "-c", "readlink /proc/self/ns/net; hostname; readlink /proc/self/ns/ipc"]
    with Lab(loopback=True) as lab:
        hosts = [lab.add_host("one"), lab.add_host("other")]
        identities = [host.run(identity).split() for host in hosts]
        assert identities[0][0] == identities[1][0] != str(Path("/proc/self/ns/net").readlink())
        assert [identity[1] for identity in identities] == ["one", "other"]
        assert identities[0][2] != identities[1][2]
        assert "eth0" not in hosts[0].run(["ip", "-o", "link"])
        assert congestion_control(hosts[0]) == Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        assert raw.measure(hosts[0], hosts[1], 1_000_000, 1) > 0
        with pytest.raises(ValueError, match="no rate"):
            lab.add_host("third", rate=1_000_000)
    with Lab(congestion="reno", loopback=True) as lab:
        assert congestion_control(lab.add_host("one")) == "reno"


def congestion_control(host: Host) -> str:
    return host.run(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]).strip()


def test_congestion_control_is_chosen_and_not_this_machines(lab: Lab) -> None:
    own = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text()
    assert congestion_control(lab.add_host("one")) == "cubic"
    with Lab(congestion="reno") as another:
        assert congestion_control(another.add_host("one")) == "reno"
    assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text() == own


def test_sysctls_are_those_of_the_hosts_and_not_this_machines(namespaces: None) -> None:
    name = "net.ipv4.tcp_slow_start_after_idle"
    path = Path("/proc/sys") / name.replace(".", "/")
    own = path.read_text()
    value = "0" if own.strip() == "1" else "1"
    for loopback in (False, True):
        with Lab(sysctls={name: value}, loopback=loopback) as lab:
            assert lab.add_host("one").run(["cat", str(path)]).strip() == value
            assert path.read_text() == own
    with (
        Lab(sysctls={"net.ipv4.no_such_thing": "1"}) as lab,
        pytest.raises(LabError, match=r"net\.ipv4\.no_such_thing"),
    ):
        lab.add_host("one")


ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def allow(choose: Callable[[list[str]], list[str]]) -> None:
    with ALLOWED.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # labs of other tests change it, too
        ALLOWED.write_text(" ".join(choose(file.read().split())) + "\n")


@pytest.fixture
def cubic_not_allowed() -> Iterator[None]:
    """A machine whose namespaces may not choose cubic, as where it is a module that was not asked for."""
    was_allowed = "cubic" in ALLOWED.read_text().split()
    allow(lambda names: [name for name in names if name != "cubic"])
    yield
    if was_allowed:
        allow(lambda names: [*names, "cubic"])


def test_a_congestion_control_that_namespaces_may_not_choose_is_allowed_for_the_moment(
    cubic_not_allowed: None, lab: Lab
) -> None:
    assert congestion_control(lab.add_host("one")) == "cubic"
    assert "cubic" not in ALLOWED.read_text().split()


def test_an_unknown_congestion_control_is_named_with_those_there_are(lab: Lab) -> None:
    with Lab(congestion="slow boat") as another, pytest.raises(LabError, match=r"'slow boat', it has .*reno"):
        another.add_host("one")


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with Lab() as another:
        for each in (lab, another):
            each.add_host("one")
            each.add_host("other")
        address = lab.hosts["other"].address
        assert address == another.hosts["other"].address
        lab.hosts["other"].link_down()
        another.hosts["one"].run([sys.executable, "-c", _CONNECT, address])


# Refused is an answer: the host is there.
_CONNECT = """
import socket, sys
probe = socket.socket()
probe.settimeout(30)
assert probe.connect_ex((sys.argv[1], 9)) == 111
"""


def test_names_of_hosts_are_checked(lab: Lab) -> None:
    lab.add_host("one")
    for name in ("one", "", "switch", "two words", "x" * 16, "a;b"):
        with pytest.raises(ValueError, match="cannot be the name"):
            lab.add_host(name)


def test_a_failed_command_says_why(lab: Lab) -> None:
    with pytest.raises(LabError, match="qdisc"):
        lab.at_switch(["tc", "qdisc", "del", "dev", "switch", "root", "tbf"])


def test_a_plain_socket_is_not_faster_than_the_link(lab: Lab) -> None:
    rate, size = 100_000_000, 4_000_000
    one, other = lab.add_host("one", rate), lab.add_host("other", rate)
    before = lab.counters()
    seconds = raw.measure(one, other, size)
    # A full bucket is a small head start.
    assert seconds > 0.9 * payload_seconds(size, rate)
    carried = lab.counters()["one"] - before["one"]
    assert carried.sent >= 3 * size
    assert carried.received < carried.sent / 4
    # Ten times slower from now on.
    other.set_rate(rate // 10)
    assert raw.measure(one, other, size // 10, rounds=1) > 0.9 * payload_seconds(size // 10, rate // 10) / 2


def test_a_plain_socket_that_stalls_ends_at_its_limit(lab: Lab) -> None:
    one, other = lab.add_host("one"), lab.add_host("other")
    other.silence()
    with pytest.raises(LabError, match=r"not done within 0\.5 s$"):
        raw.measure(one, other, 1_000_000, limit=0.5)


# Connects, then sends what it is told to, line by line on its standard input, and says when it has.
_SENDER = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5000), 30)
print("connected", flush=True)
for line in sys.stdin:
    peer.sendall(line.encode())
    print("sent", flush=True)
"""
# Says what it gets.
_RECEIVER = """
import socket
listener = socket.create_server(("", 5000))
print("ready", flush=True)
peer = listener.accept()[0]
while text := peer.recv(100):
    print(text.decode().strip(), flush=True)
"""


class Conversation:
    """One connection between two hosts."""

    def __init__(self, source: Host, sink: Host) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._receiver = sink.popen([sys.executable, "-u", "-c", _RECEIVER], **pipes)
        assert self._receiver.stdout.readline() == "ready\n"
        self._sender = source.popen([sys.executable, "-u", "-c", _SENDER, sink.address], **pipes)
        assert self._sender.stdout.readline() == "connected\n"
        os.set_blocking(self._receiver.stdout.fileno(), False)

    def send(self, word: str) -> None:
        self._sender.stdin.write(word + "\n")
        self._sender.stdin.flush()
        assert self._sender.stdout.readline() == "sent\n"

    def received(self) -> str:
        """What has come in since, without waiting."""
        return self._receiver.stdout.readline().strip()

    def alive(self) -> bool:
        return self._sender.poll() is None and self._receiver.poll() is None


def _interrupt(host: Host, stop: Callable[[], None], go_on: Callable[[], None], talk: Conversation) -> None:
    """A word said while the cable carries nothing arrives when it carries again, and not before."""
    talk.send("before")
    wait_until(lambda: talk.received() == "before", "the first word")
    stop()
    before = _retransmitted(host)
    talk.send("during")
    wait_until(lambda: _retransmitted(host) > before, "a packet sent again")
    assert talk.received() == ""
    go_on()
    wait_until(lambda: talk.received() == "during", "the word that was sent into silence")
    assert talk.alive()


def _retransmitted(host: Host) -> int:
    lines = host.run(["cat", "/proc/net/snmp"]).splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def test_a_silenced_host_is_half_open(lab: Lab) -> None:
    one, other = lab.add_host("one"), lab.add_host("other")
    talk = Conversation(one, other)
    _interrupt(one, other.silence, other.unsilence, talk)


def test_a_link_that_goes_down_and_comes_back(lab: Lab) -> None:
    one, other = lab.add_host("one"), lab.add_host("other")
    talk = Conversation(one, other)
    _interrupt(one, other.link_down, other.link_up, talk)
    other.link_down()
    wait_until(lambda: "NO-CARRIER" in other.run(["ip", "link", "show", "dev", "eth0"]), "no carrier")


def test_lost_packets_are_sent_again(lab: Lab) -> None:
    obstacle = why_not_lose()
    if obstacle is not None:
        pytest.skip(obstacle)
    one, other = lab.add_host("one"), lab.add_host("other")
    talk = Conversation(one, other)
    _interrupt(one, lambda: other.lose(100), lambda: other.lose(0), talk)
    other.lose(50)
    other.lose(20)
    before = _retransmitted(one)

    def one_was_lost() -> bool:
        # In a packet of its own, once the one before has arrived: sooner or later one of five is lost.
        talk.send("word")
        return _retransmitted(one) > before

    wait_until(one_was_lost, "a packet sent again")


def test_what_runs_on_a_host_ends_with_the_lab(namespaces: None) -> None:
    with Lab() as lab:
        child = lab.add_host("one").popen(["sleep", "1000"])
    assert child.poll() is not None
