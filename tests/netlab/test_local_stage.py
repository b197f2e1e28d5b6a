"""Hosts whose workers reduce among themselves first: what leaves such a host, and where gradients lie."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass
class _Done:
    """A job that has ended well: what its workers said, and the bytes that their hosts sent and received."""

    said: list[str]
    sent: int
    received: int


def _run(package: Path, hosts: int, local: int, worker: list[str]) -> _Done:
    """A job of workers on so many hosts, `local` on each, with two servers on another one."""
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
        members = [
            (services, "scheduler", server, {}),
            (services, "server", server, {"DMLC_RANK": "0"}),
            (services, "server", server, {"DMLC_RANK": "1"}),
        ]
        for index, host in enumerate(workers):
            for rank in range(local):
                place = {"DMLC_WORKER_ID": str(index), "BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_HOST_ID": host.name}
                members.append((host, "worker", worker, place))
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
        return _Done(said[3:], sum(each.sent for each in carried), sum(each.received for each in carried))


def test_two_workers_on_each_of_four_hosts_send_half_of_what_eight_alone_send(namespaces: None, package: Path) -> None:
    trainer = [sys.executable, str(TRAINER), str(ROUNDS), str(ELEMENTS)]
    together = _run(package, hosts=4, local=2, worker=trainer)
    alone = _run(package, hosts=8, local=1, worker=trainer)
    payload = ROUNDS * ELEMENTS * 4
    for of_two, of_one in ((together.sent, alone.sent), (together.received, alone.received)):
        assert of_one > 8 * payload
        assert 4 * payload < of_two < 0.55 * of_one, f"{of_two} bytes instead of half of {of_one}"


# How many memories the first gradient has in six steps, and the sum of the weights.
_TRAINING = """
import byteps.torch as bps
import torch

bps.init()
torch.set_num_threads(1)
model = torch.nn.Linear(512, 300)
torch.nn.init.ones_(model.weight)
torch.nn.init.zeros_(model.bias)
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
places = set()
for _ in range(6):
    optimizer.zero_grad(set_to_none=False)
    model(torch.full((1, 512), float(bps.rank() + 1))).sum().backward()
    optimizer.step()
    places.add(model.weight.grad.data_ptr())  # (a gradient that the trainer keeps stays where it is)
print("gradients in", len(places), "places; weights", model.weight.unique().tolist())
bps.shutdown()
"""


def test_gradients_of_the_optimizer_lie_in_buffers_that_the_workers_of_a_host_share(
    namespaces: None, package: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    program = tmp_path / "training.py"
    program.write_text(_TRAINING)
    # The mean of ranks + 1 is 2.5 (1.5), in each of six steps.
    for hosts, local, places, weight in ((2, 2, 2, 1 - 6 * 0.5 * 2.5), (2, 1, 1, 1 - 6 * 0.5 * 1.5)):
        done = _run(package, hosts, local, [sys.executable, str(program)])
        for said in done.said:
            assert f"gradients in {places} places; weights [{weight}]" in said, said
