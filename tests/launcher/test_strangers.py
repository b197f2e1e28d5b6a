"""A real job beside 10,000 connections that are not of it, at the ports and sockets of its data: rounds go on, and what
the strangers took of descriptors and processor time comes back."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pathlib
import re
import socket
import time

import pytest
from launching import TRAINER, Launch, Start, wait_until
from test_supervisor import cpu_seconds

CALLS = 10_000
# What a stranger holds open at a time: more than an endpoint lets wait.
HELD = 600
# What callers of all endpoints of one process may hold at a time (128 for each over TCP, 272 over shm), and some more.
WAITING = 700
# Bare; cut short within the provider's head of a request; of some other protocol; no request at all.
WORDS = [b"", b"\x03\x00\x00\x28" + b"\0" * 20 + b"\x01", b"GET / HTTP/1.1\r\n\r\n", b"x" * 300]


def members(launch: Launch) -> dict[str, int]:
    """The process ids of workers and servers, by name."""
    found = re.findall(r"^bpslaunch: ((?:worker|server) \d+): pid (\d+)", launch.stderr, re.MULTILINE)
    return {name: int(pid) for name, pid in found}


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if match := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
                found.add(match[1])
    return found


def tcp_ports(pid: int) -> list[int]:
    """Where a process listens, over IPv4."""
    own = sockets(pid)
    rows = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own]


def unix_names(pid: int) -> list[bytes]:
    """The abstract names at which a process listens for others (libfabric's own, behind the door, has no such name)."""
    own = sockets(pid)
    rows = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    # Flags 0x10000: it listens. Type 5: SOCK_SEQPACKET.
    names = [row[7] for row in rows if len(row) == 8 and row[3] == "00010000" and row[4] == "0005" and row[6] in own]
    return [b"\0" + name[1:].encode() for name in names if name.startswith("@")]


def descriptors(pid: int) -> int:
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def rounds(launch: Launch) -> int:
    return launch.stdout.count("round")


def idle_shares(launch: Launch, pids: list[int], pause: pathlib.Path) -> dict[int, float]:
    """The part of a processor that each takes while the trainers pause: the least of a few measurements, since a busy
    machine adds to what they use."""
    pause.touch()
    least = dict.fromkeys(pids, 1.0)
    for _ in range(5):
        before, begin = {pid: cpu_seconds(pid) for pid in pids}, time.monotonic()
        time.sleep(1)  # the time over which it is measured
        passed = time.monotonic() - begin
        least = {pid: min(least[pid], (cpu_seconds(pid) - before[pid]) / passed) for pid in pids}
        if max(least.values()) < 0.01:
            break
    pause.unlink()
    launch.wait_for("round", rounds(launch) + 4)
    return least


def call(address: tuple[str, int] | bytes) -> socket.socket | None:
    if isinstance(address, bytes):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    else:
        caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        caller.settimeout(5)
        caller.connect(address)
    except OSError:  # A queue that is full is refused.
        caller.close()
        return None
    return caller


def attack(addresses: list[tuple[str, int] | bytes], launch: Launch, pids: list[int]) -> tuple[int, int, int]:
    """CALLS connections, and more until 20 rounds have ended: bare, with a few bytes, closed at once and held open. How
    many were taken, the most descriptors that one member had meanwhile, and the rounds that ended meanwhile."""
    held: collections.deque[socket.socket] = collections.deque()
    taken, most, first, deadline = 0, 0, rounds(launch), time.monotonic() + 120
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in held])
        for number in itertools.count():
            if number >= CALLS and number % 100 == 0:
                if rounds(launch) > first + 20:
                    break
                assert time.monotonic() < deadline, f"{rounds(launch) - first} rounds within two minutes"
            caller = call(addresses[number % len(addresses)])
            if caller is None:
                continue
            taken += 1
            held.append(caller)
            with contextlib.suppress(OSError):  # It has been shown out.
                if words := WORDS[number % len(WORDS)]:
                    caller.send(words)
            if number % 5 == 0:
                held.pop().close()
            if len(held) > HELD:
                held.popleft().close()
            if number % 500 == 0:
                most = max(most, *map(descriptors, pids))
                assert launch.process.poll() is None, launch.stderr
        # Rounds go on while all of them are still there.
        launch.wait_for("round", rounds(launch) + 20)
        return taken, most, rounds(launch) - first


@pytest.mark.parametrize("shm", ["0", "1"])
def test_ten_thousand_strangers_do_not_disturb_a_job(
    start: Start, real: dict[str, str], tmp_path: pathlib.Path, shm: str
) -> None:
    pause = tmp_path / "pause"
    variables = {**real, "BYTEPS_SHM": shm, "BYTEPS_TRANSPORT": "tcp", "BYTEPS_FORCE_DISTRIBUTED": "1"}
    variables["TRAINER_PAUSE"] = str(pause)
    words = ["--verbose", "--workers", "2", "--servers", "1", "--", *TRAINER, "0", "1000"]
    launch = start(*words, variables=variables)
    launch.wait_for("round", 40)
    pids = members(launch)
    assert sorted(pids) == ["server 0", "worker 0", "worker 1"], launch.stderr
    addresses: list[tuple[str, int] | bytes] = []
    for name, pid in pids.items():
        own = unix_names(pid) if shm == "1" else [("127.0.0.1", port) for port in tcp_ports(pid)]
        assert own, f"{name} listens nowhere"
        addresses += own
    alive = list(pids.values())
    before = {pid: descriptors(pid) for pid in alive}
    idle = idle_shares(launch, alive, pause)

    taken, most, meanwhile = attack(addresses, launch, alive)

    assert taken > CALLS // 2, "few connections came in"
    assert meanwhile > 40
    assert most < max(before.values()) + WAITING
    # A connection that says nothing is closed after some seconds.
    wait_until(
        lambda: all(descriptors(pid) <= before[pid] for pid in alive),
        lambda: f"descriptors: { {pid: descriptors(pid) for pid in alive} }, before: {before}",
    )
    for pid, share in idle_shares(launch, alive, pause).items():
        assert share < idle[pid] + 0.03, f"process {pid} of {pids} takes {share:.3f} of a processor for nothing"
    assert launch.process.poll() is None, launch.stderr
    refusals = launch.stderr.count("not of this job")
    # Ten at once, then one in ten seconds, of each endpoint; not one for each connection.
    assert 0 < refusals < 30 * len(addresses), f"{refusals} lines"
    print(f"{taken} taken, {most} descriptors at most ({max(before.values())} before), {meanwhile} rounds meanwhile")
    launch.process.terminate()
    assert launch.wait() == 143
    launch.wait_gone()
