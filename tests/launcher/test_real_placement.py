"""What the coordinator's variables do to a whole job: which server reduces how much."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from launching import Launch, Spawn
from role_job import LARGE, RoleJob

PARTITION = "40000"  # bytes: a hundred of LARGE's
PARTS = 100
SERVERS = 4  # for the hashes: they give these parts to four servers unevenly


def reduced(launch: Launch) -> int:
    """How many partitions the server in there has reduced; it tells at its end."""
    (told,) = re.findall(r"; (\d+) partitions reduced", launch.stderr)
    return int(told)


@pytest.mark.parametrize(
    "mode, apart, beside",
    [
        # n = 3 worker hosts, k = 1 server apart: 2(n-1) : (n-k).
        ("auto", 40, 20),
        ("on", 40, 20),
        ("off", 25, 25),
    ],
)
def test_servers_beside_workers_and_one_apart(
    spawn: Spawn, real: dict[str, str], mode: str, apart: int, beside: int
) -> None:
    job = RoleJob(spawn, real, 3, 4, BYTEPS_PARTITION_BYTES=PARTITION, BYTEPS_LOG_LEVEL="info")
    coordinator = job.coordinator(BYTEPS_ENABLE_MIXED_MODE=mode)
    dedicated = job.server(BYTEPS_HOST_ID="apart")
    hosts = [job.host_with_server(index, "1", LARGE) for index in range(3)]
    for launch in (*hosts, coordinator, dedicated):
        assert launch.wait() == 0, launch.stderr
    for index, host in enumerate(hosts):
        assert f"[worker {index}.0] done" in host.stdout
    counts = [reduced(launch) for launch in (dedicated, *hosts)]
    assert sum(counts) == PARTS
    for count, share in zip(counts, (apart, beside, beside, beside)):
        assert abs(count - share) <= 2, counts


def test_no_optimum_is_told(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, 2, 2, BYTEPS_PARTITION_BYTES=PARTITION, BYTEPS_LOG_LEVEL="info")
    coordinator = job.coordinator(BYTEPS_ENABLE_MIXED_MODE="on")
    dedicated = job.server(BYTEPS_HOST_ID="apart")
    hosts = [job.host_with_server(0, "1", LARGE), job.host(1, 1, "1", LARGE)]
    for launch in (*hosts, coordinator, dedicated):
        assert launch.wait() == 0, launch.stderr
    assert "BYTEPS_ENABLE_MIXED_MODE=on, but only 1 of 2 worker hosts have a server" in coordinator.stderr
    assert [reduced(launch) for launch in (dedicated, hosts[0])] == [PARTS // 2, PARTS // 2]


def hashed(step: Callable[[int, int], int], start: int) -> Callable[[int], int]:
    """A hash of the key's decimal digits, in 64 bits."""

    def server(key: int) -> int:
        value = start
        for digit in str(key).encode():
            value = step(value, digit) % 2**64
        return value % SERVERS

    return server


djb2 = hashed(lambda value, digit: value * 33 + digit, 5381)
sdbm = hashed(lambda value, digit: digit + (value << 6) + (value << 16) - value, 0)


@pytest.mark.parametrize("name, server_of", [("djb2", djb2), ("sdbm", sdbm)])
def test_a_hash_of_the_key_says_where(
    spawn: Spawn, real: dict[str, str], name: str, server_of: Callable[[int], int]
) -> None:
    job = RoleJob(spawn, real, 2, SERVERS, BYTEPS_PARTITION_BYTES=PARTITION, BYTEPS_LOG_LEVEL="info")
    coordinator = job.coordinator(BYTEPS_KEY_HASH_FN=name)
    servers = [job.server(DMLC_RANK=str(rank)) for rank in range(SERVERS)]
    workers = [job.plain(index, "1", LARGE) for index in range(2)]
    for launch in (*workers, coordinator, *servers):
        assert launch.wait() == 0, launch.stderr
    # The first tensor's number is 0, so the keys are those of its parts.
    expected = Counter(server_of(part) for part in range(PARTS))
    assert [reduced(server) for server in servers] == [expected[rank] for rank in range(SERVERS)]
