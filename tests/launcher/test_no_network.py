"""A host without any network, loopback included: said at once, with what to do. In a network namespace of its own."""

from __future__ import annotations

import time

import pytest
from launching import BPSLAUNCH, OWN_NETWORK, Spawn, Worker, need_own_network

# Far below BYTEPS_START_TIMEOUT, after which a member gives up by itself.
SOON = 30


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    need_own_network()


@pytest.mark.parametrize(
    "words, variables",
    [
        (["--workers", "2"], {}),
        (["--workers", "2", "--servers", "1"], {}),
        (
            [],
            {
                "DMLC_ROLE": "worker",
                "DMLC_NUM_WORKER": "2",
                "DMLC_NUM_SERVER": "1",
                "DMLC_WORKER_ID": "0",
                "DMLC_PS_ROOT_URI": "127.0.0.1",
                "DMLC_PS_ROOT_PORT": "9000",
            },
        ),
    ],
)
def test_a_host_that_cannot_reach_itself(
    spawn: Spawn, worker: Worker, real: dict[str, str], words: list[str], variables: dict[str, str]
) -> None:
    began = time.monotonic()
    launch = spawn(
        *OWN_NETWORK, *BPSLAUNCH, *words, "--", *worker("print('started')"),
        variables={**real, **variables, "BYTEPS_START_TIMEOUT": "300"},
    )  # fmt: skip
    assert launch.wait() == 1
    assert time.monotonic() - began < SOON
    assert "127.0.0.1 cannot be reached: Network is unreachable" in launch.stderr
    assert "ip link set lo up" in launch.stderr
    assert launch.stdout == ""


def test_one_worker_alone_needs_no_network(spawn: Spawn, worker: Worker) -> None:
    launch = spawn(*OWN_NETWORK, *BPSLAUNCH, "--", *worker("print('started')"))
    assert launch.wait() == 0, launch.stderr
    assert "started" in launch.stdout


def test_the_check_finds_it(spawn: Spawn, worker: Worker, real: dict[str, str]) -> None:
    launch = spawn(*OWN_NETWORK, *BPSLAUNCH, "--check", "--workers", "2", "--", *worker("pass"), variables=real)
    assert launch.wait() == 1
    assert "FAIL  route" in launch.stdout and "ip link set lo up" in launch.stdout
