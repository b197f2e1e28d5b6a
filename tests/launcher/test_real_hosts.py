"""Two hosts with a network between them, each a network namespace; needs the right to make some (root)."""

from __future__ import annotations

import pathlib
import subprocess
import uuid
from collections.abc import Iterator

import pytest
from launching import BPSLAUNCH, TRAINER, Launch, Spawn

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """The names of two connected network namespaces."""
    # Names of interfaces are short, and are seen outside for a moment.
    unique = uuid.uuid4().hex[:8]
    names = [f"bps-{unique}-{side}" for side in "ab"]
    links = [f"bps{unique}{side}" for side in "ab"]
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
            ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
        for name, link, address in zip(names, links, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.fixture
def variables(real: dict[str, str], tmp_path: pathlib.Path) -> dict[str, str]:
    """A job of two worker hosts and one server, whose coordinator is on the first."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a secret of the tests, long enough")
    return {
        **real,
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": ADDRESSES[0],
        "DMLC_PS_ROOT_PORT": "9000",
        "BYTEPS_JOB_LINGER": "0",
        "BYTEPS_JOB_TOKEN_FILE": str(token),
        "BYTEPS_START_TIMEOUT": "100",
    }


def test_a_job_over_a_network(spawn: Spawn, hosts: list[str], variables: dict[str, str]) -> None:
    def on(host: int, *command: str, **more: str) -> Launch:
        return spawn("ip", "netns", "exec", hosts[host], *BPSLAUNCH, *command, variables={**variables, **more})

    for host, role in ((0, "scheduler"), (1, "server"), (1, "worker")):
        check = on(host, "--check", DMLC_ROLE=role, DMLC_WORKER_ID="1")
        assert check.wait() == 0, check.stdout
        assert f"to 10.77.0.1 goes out from {ADDRESSES[host]}" in check.stdout
    services = [on(0, DMLC_ROLE="scheduler"), on(1, DMLC_ROLE="server")]
    workers = [
        on(host, *TRAINER, "5", "1000000", DMLC_ROLE="worker", DMLC_WORKER_ID=str(host), BYTEPS_LOCAL_SIZE=str(size))
        for host, size in enumerate((1, 2))
    ]
    for worker, ranks in zip(workers, ((0,), (1, 2))):
        assert worker.wait() == 0, worker.stderr
        for rank in ranks:
            assert f"rank {rank} of 3" in worker.stdout
    for service in services:
        assert service.wait() == 0, service.stderr


def test_no_token_is_refused_off_loopback(spawn: Spawn, hosts: list[str], variables: dict[str, str]) -> None:
    del variables["BYTEPS_JOB_TOKEN_FILE"]
    variables["DMLC_ROLE"] = "scheduler"
    command = ["ip", "netns", "exec", hosts[0], *BPSLAUNCH]
    coordinator = spawn(*command, variables=variables)
    assert coordinator.wait() == 1
    for way_out in ("BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"):
        assert way_out in coordinator.stderr
    check = spawn(*command, "--check", variables=variables)
    assert check.wait() == 1
    assert "FAIL  token" in check.stdout
