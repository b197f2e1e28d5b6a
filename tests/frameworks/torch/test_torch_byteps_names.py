"""BytePS's own words beyond push_pull: suspend and resume, group counts, half precision, speed, the server module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.misc import imagenet18
from byteps.speed import SpeedMeter
from byteps.torch import ops
from jobs import Outcomes, clean_environment
from torch import nn


def _suspend_and_resume() -> None:
    bps.init()
    rank = bps.rank()
    bps.push_pull(torch.ones(2), name="before")
    with pytest.raises(ValueError, match="suspend"):
        bps.resume(1, 1, rank)
    for _ in range(2):
        bps.suspend()
        assert not bps.is_initialized()
        with pytest.raises(ValueError, match="init"):
            bps.push_pull(torch.ones(2), name="before")
        bps.resume(1, 1, rank)
        assert (bps.rank(), bps.size()) == (rank, 2)
        assert torch.equal(bps.push_pull(torch.ones(2), average=False, name="before"), torch.full((2,), 2.0))
    os.environ.pop("BYTEPS_GLOBAL_RANK")


def _group_counts() -> None:
    bps.init()
    ops.byteps_torch_set_num_grads(3)
    counts = []
    for number in range(7):
        tensor = torch.full((2,), float(number))
        handle, count = ops.push_pull_group_sync_inplace(tensor, average=False, name=f"g{number % 3}")
        assert torch.equal(bps.synchronize(handle), torch.full((2,), 2.0 * number))
        counts.append(count)
    assert counts == [1, 2, 3, 1, 2, 3, 1]


def _half_precision() -> None:
    bps.init()
    torch.manual_seed(0)
    model = nn.Linear(4, 3).half()
    halves = list(model.parameters())
    fulls = [nn.Parameter(half.detach().float()) for half in halves]
    begin = [full.detach().clone() for full in fulls]
    optimizer = imagenet18.DistributedOptimizer(
        torch.optim.SGD(fulls, lr=1.0),
        named_parameters=[("weight", fulls[0]), ("bias", fulls[1])],
        half=True,
        model=model,
        fp16_params=halves,
        fp32_params=fulls,
        loss_scale=8,
    )
    optimizer.zero_grad()
    for half in halves:
        (half * (8.0 * (bps.rank() + 1))).sum().backward()
    optimizer.step()
    for full, start in zip(fulls, begin):
        assert torch.equal(full.detach(), start - 1.5), "the mean of 1 and 2"
    for wrong in ({"fp16_params": None}, {"fp32_params": fulls[:1]}, {"loss_scale": 0}):
        options = {"fp16_params": halves, "fp32_params": fulls, "loss_scale": 8, **wrong}
        with pytest.raises(ValueError, match=r"fp16_params|loss_scale"):
            imagenet18.DistributedOptimizer(torch.optim.SGD(fulls, lr=1.0), half=True, **options)


BODIES = [_suspend_and_resume, _group_counts, _half_precision]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_speed() -> None:
    now = 0.0
    meter = SpeedMeter(clock=lambda: now)
    assert meter.take() == (0, -5.0)
    meter.record(10_000_000)
    now = 10.0
    meter.record(90_000_000)
    milliseconds, speed = meter.take()
    assert milliseconds > 1_600_000_000_000 and speed == 10.0
    assert meter.take() == (0, -5.0)


def test_speed_of_many_threads() -> None:
    now = 0.0
    meter = SpeedMeter(clock=lambda: now)
    with ThreadPoolExecutor(4) as threads:
        # More than are kept before they are summed up.
        list(threads.map(lambda _: [meter.record(1000) for _ in range(50_000)], range(4)))
    now = 10.0
    meter.record(0)
    assert meter.take()[1] == 4 * 50_000 * 1000 / 10 / 1e6


def test_the_server_module_runs_the_program() -> None:
    """It is the program that answers: a role without its address is refused in its words."""
    done = subprocess.run(
        [sys.executable, "-c", "import byteps.server"],
        env=clean_environment(DMLC_ROLE="server", DMLC_NUM_WORKER="1", DMLC_NUM_SERVER="1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "byteps_server (" in done.stderr and "DMLC_PS_ROOT_URI" in done.stderr, done.stderr
