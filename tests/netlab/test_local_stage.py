"""What leaves a host whose workers reduce among themselves first: each byte once, not once for each worker."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab

SECONDS = 180.0
ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests" / "launcher" / "trainer.py"
ROUNDS, ELEMENTS = 5, 1_000_000
PORT = 9000


@pytest.fixture
def package() -> Path:
    """The installed package, which has library, server and plugins."""
    spec = importlib.util.find_spec("byteps")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("byteps is not installed")
    return Path(spec.submodule_search_locations[0])


def _carried(package: Path, hosts: int, local: int) -> tuple[int, int]:
    """Bytes that workers on so many hosts, `local` on each, have sent and received in a job with two servers."""
    with Lab() as lab:
        services = lab.add_host("services")
        workers = [lab.add_host(f"worker{index}") for index in range(hosts)]
        common = {
            "PATH": "/usr/bin:/bin",
            "DMLC_PS_ROOT_URI": services.address,
            "DMLC_PS_ROOT_PORT": str(PORT),
            "DMLC_NUM_WORKER": str(hosts),
            "DMLC_NUM_SERVER": "2",
            "BYTEPS_LOCAL_SIZE": str(local),
            "BYTEPS_JOB_TOKEN": "local stage",
            "BYTEPS_TRANSPORT": "tcp",
            "BYTEPS_JOB_LINGER": "1",
            "BYTEPS_START_TIMEOUT": "150",
            "BYTEPS_LIBRARY": str(package / "lib" / "libbyteps.so"),
        }
        server = [str(package / "bin" / "byteps_server")]
        trainer = [sys.executable, str(TRAINER), str(ROUNDS), str(ELEMENTS)]
        members = [
            (services, "scheduler", server, {}),
            (services, "server", server, {"DMLC_RANK": "0"}),
            (services, "server", server, {"DMLC_RANK": "1"}),
        ]
        for index, host in enumerate(workers):
            for rank in range(local):
                place = {"DMLC_WORKER_ID": str(index), "BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_HOST_ID": host.name}
                members.append((host, "worker", trainer, place))
        before = lab.counters()
        processes = [
            host.popen(
                command,
                env=common | {"DMLC_ROLE": role, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host, role, command, own in members
        ]
        said = [process.communicate(timeout=SECONDS)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(members), "\n----\n".join(said)
        carried = [lab.counters()[host.name] - before[host.name] for host in workers]
        return sum(each.sent for each in carried), sum(each.received for each in carried)


def test_two_workers_on_each_of_four_hosts_send_half_of_what_eight_alone_send(namespaces: None, package: Path) -> None:
    together = _carried(package, hosts=4, local=2)
    alone = _carried(package, hosts=8, local=1)
    payload = ROUNDS * ELEMENTS * 4
    for of_two, of_one in zip(together, alone):
        assert of_one > 8 * payload
        assert 4 * payload < of_two < 0.55 * of_one, f"{of_two} bytes instead of half of {of_one}"
