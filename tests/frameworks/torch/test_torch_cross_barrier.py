"""byteps.torch.cross_barrier: scripts written for it run, and train as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch
import byteps.torch.cross_barrier as bps
from torch import nn

RunWorkers = Callable[..., Any]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=1e-3),
}


def _train(optimizer_name: str, crossing: bool, zero: bool, passes: int) -> list[torch.Tensor]:
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())
    assert bps.local_rank() == bps.rank() < bps.local_size() == bps.size()
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer: Any = OPTIMIZERS[optimizer_name](model.parameters())
    if crossing:
        optimizer = bps.CrossBarrier(
            model, optimizer, model.named_parameters(), bps.Compression.fp16, passes, num_steps=4
        )
    else:
        optimizer = byteps.torch.DistributedOptimizer(optimizer, model.named_parameters(), bps.Compression.fp16, passes)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    held = 0
    for step in range(6):
        if zero:
            optimizer.zero_grad()
        for number in range(passes):
            generator = torch.Generator().manual_seed(10 * step + 2 * number + bps.rank())
            model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()
        held += any(type(parameter) is not nn.Parameter for parameter in model.parameters())
        schedule.step()
    assert crossing or not held
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    if crossing:
        assert not any(parameter.grad.any() for parameter in model.parameters())
    bps.shutdown()
    return weights


@pytest.mark.parametrize(("name", "zero", "passes"), [("Adam", True, 1), ("SGD", True, 1), ("SGD", False, 2)])
def test_a_script(run_workers: RunWorkers, name: str, zero: bool, passes: int) -> None:
    """The bits are those of training without it."""
    expected = run_workers(_train, name, False, True, passes).results
    for ours, others in zip(run_workers(_train, name, True, zero, passes).results, expected):
        assert all(torch.equal(a, b) for a, b in zip(ours, others))


def test_refused(alone: None) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LBFGS updates all parameters at once"):
        bps.CrossBarrier(model, torch.optim.LBFGS(model.parameters()))
