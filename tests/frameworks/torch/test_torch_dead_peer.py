"""A worker dies in the middle of training. In each way to average gradients the others get an error that names it,
within the deadline, and what they hold can still be read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from byteps.torch.parallel import DistributedDataParallel
from process_group import begin
from torch import nn

RunWorkers = Callable[..., Any]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 400), nn.Tanh(), nn.Linear(400, 2))


def _wrapper(store: str) -> nn.Module:
    del store
    return DistributedDataParallel(_model())


def _comm_hook(store: str) -> nn.Module:
    """Gloo carries what DDP needs at the beginning."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=bps.rank(), world_size=bps.size())
    wrapped = nn.parallel.DistributedDataParallel(_model())
    wrapped.register_comm_hook(None, bps.comm_hook)
    return wrapped


def _backend(store: str) -> nn.Module:
    del store
    begin()
    return nn.parallel.DistributedDataParallel(_model())


WAYS = {"wrapper": _wrapper, "comm_hook": _comm_hook, "backend": _backend}


def _a_peer_dies(way: str, store: str) -> str:
    """The last rank, between two steps; what the others are told."""
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = WAYS[way](store)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3) + bps.rank()).sum().backward()
        optimizer.step()

    step()
    step()
    bps.barrier("two steps are done")
    if bps.rank() == bps.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception) as caught:
        for _ in range(3):
            step()
    assert all(value.isfinite().all() for value in model.state_dict().values())
    with pytest.raises(bps.UnavailableError):
        bps.push_pull(torch.ones(1), name="later")
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_peer_dies(run_workers: RunWorkers, way: str, servers: int, tmp_path: Path) -> None:
    arguments = (way, str(tmp_path / "store"))
    job = run_workers(_a_peer_dies, *arguments, workers=3, servers=servers, check=False, BYTEPS_OP_TIMEOUT="120")
    for rank in range(2):
        assert job.results[rank] is not None, job.output
        assert job.results[rank].startswith("UnavailableError: "), job.results[rank]
        assert "rank 2" in job.results[rank], job.results[rank]


def _wrapped_after_a_peer_has_left() -> str:
    """A new wrapper, which begins with the parameters of rank 0."""
    bps.init()
    DistributedDataParallel(_model())
    bps.barrier("the first one is made")
    if bps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(bps.UnavailableError) as caught:
        for _ in range(20):
            DistributedDataParallel(_model())
    return str(caught.value)


def test_a_new_wrapper_with_a_dead_peer(run_workers: RunWorkers) -> None:
    job = run_workers(_wrapped_after_a_peer_has_left, check=False, BYTEPS_OP_TIMEOUT="120")
    assert job.results[0] is not None and "rank 1" in job.results[0], job.output
