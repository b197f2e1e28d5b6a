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


def _messages() -> None:
    bps.init()
    peer = 1 - bps.rank()
    # In another order than sent, by name; of one name, and of none, in the order in which they were sent.
    sent = [
        bps.send_async(torch.full((2, 3), 10.0 * bps.rank() + number), peer, name, 0, number)
        for number, name in enumerate(("a", "b", None, "b", None))
    ]
    rooms = {
        number: bps.recv_async(torch.zeros(3, 2).t(), sender=peer, name=name)
        for number, name in ((1, "b"), (2, None), (3, "b"), (0, "a"), (4, None))
    }
    for number, handle in rooms.items():
        assert torch.equal(bps.synchronize(handle), torch.full((2, 3), 10.0 * peer + number)), number
    assert torch.equal(bps.synchronize(sent[0]), torch.full((2, 3), 10.0 * bps.rank()))
    assert all(
        torch.equal(bps.synchronize(one), torch.full((2, 3), 10.0 * bps.rank() + k)) for k, one in enumerate(sent)
    )
    numbers = torch.arange(3, dtype=torch.int64)
    handles = [
        bps.send_async(numbers, peer, "numbers"),
        bps.recv_async(room := torch.empty_like(numbers), peer, "numbers"),
    ]
    assert bps.synchronize(handles[1]) is room and torch.equal(room, numbers)
    bps.synchronize(handles[0])
    # Other shapes than are sent: an error of the receiver, at least, and the next message arrives.
    handles = [bps.send_async(torch.ones(4), peer, "odd"), bps.recv_async(torch.ones(3), peer, "odd")]
    with pytest.raises((ValueError, bps.BytePSError)):
        for handle in reversed(handles):
            bps.synchronize(handle)
    bps.barrier()
    handles = [bps.send_async(torch.ones(4), peer, "odd"), bps.recv_async(torch.zeros(4), peer, "odd")]
    assert [bps.synchronize(handle).tolist() for handle in handles] == [[1.0] * 4] * 2
    for wrong, error in (
        (bps.rank(), ValueError),
        (2, ValueError),
        (-1, ValueError),
        ("1", TypeError),
        (None, TypeError),
    ):
        for call in (bps.send_async, bps.recv_async):
            with pytest.raises(error):
                call(torch.ones(1), wrong, "wrong")
    with pytest.raises(ValueError, match="share memory"):
        bps.recv_async(torch.ones(1).expand(3), peer)
    with pytest.raises(ValueError, match="name"):
        bps.send_async(torch.ones(1), peer, "")


BODIES = [_messages, _suspend_and_resume, _group_counts, _half_precision]


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
