"""byteps.torch.parallel.DistributedDataParallel, and hooks of the user's that change gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel
from jobs import Outcomes
from torch import nn

# What a hook of a rank makes of a gradient.
Change = Callable[[torch.Tensor, int], None]


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 2))


def _inputs(step: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank)).to(dtype)


def _scale(parameter: torch.Tensor, rank: int) -> None:
    parameter.grad.mul_(2.0 + rank)


def _replace(parameter: torch.Tensor, rank: int) -> None:
    parameter.grad = parameter.grad + 1.0 + rank


def _means(step: int, change: Change | None, dtype: torch.dtype) -> list[torch.Tensor]:
    """The averages of what all ranks' hooks leave."""
    gradients = []
    for rank in range(bps.size()):
        alone = _net().to(dtype)
        alone(_inputs(step, rank, dtype)).square().sum().backward()
        if change is not None:
            for parameter in alone.parameters():
                change(parameter, rank)
        gradients.append([parameter.grad for parameter in alone.parameters()])
    return [sum(each) / bps.size() for each in zip(*gradients)]


def _check(
    model: Any,
    step: int,
    change: Change | None,
    between: Callable[[], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """A step, and `between` its passes; the averages must be those of what the hooks leave."""
    model.zero_grad()
    loss = model(_inputs(step, bps.rank(), dtype)).square().sum()
    if between is not None:
        between()
    loss.backward()
    for parameter, mean in zip(model.parameters(), _means(step, change, dtype)):
        assert torch.equal(parameter.grad, mean), step


def _register(model: Any, change: Change) -> list[Any]:
    rank = bps.rank()
    return [p.register_post_accumulate_grad_hook(lambda p: change(p, rank)) for p in model.parameters()]


def _registered_later() -> None:
    bps.init()
    torch.set_num_threads(1)
    for find_unused in (False, True):
        for change in (_scale, _replace):
            model = DistributedDataParallel(_net(), find_unused_parameters=find_unused)
            hooks = _register(model, change)
            for step in range(3):
                _check(model, step, change)
            for hook in hooks:
                hook.remove()
            _check(model, 3, None)


def _registered_between_the_passes() -> None:
    bps.init()
    torch.set_num_threads(1)
    model = DistributedDataParallel(_net())
    _check(model, 0, None)
    _check(model, 1, _scale, between=lambda: _register(model, _scale) and None)
    _check(model, 2, _scale)


def _registered_while_accumulating() -> None:
    """The hooks see the sums, of passes inside of no_sync() and behind it."""
    bps.init()
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    weight, rank = model.module.weight, bps.rank()
    _register(model, _scale)
    with model.no_sync():
        model(torch.ones(1, 1)).sum().backward()
    assert weight.grad.item() == 2.0 + rank, "each its own"
    model(torch.ones(1, 1)).sum().backward()
    assert weight.grad.item() == (3.0 * 2.0 + 4.0 * 3.0) / 2


def _another_data_type() -> None:
    """Autograd makes its nodes anew where the data of a parameter become others; hooks, and averages, stay."""
    bps.init()
    torch.set_num_threads(1)
    for late in (False, True):
        model = DistributedDataParallel(_net())
        change = _scale if late else None
        if late:
            _register(model, _scale)
        _check(model, 0, change)
        model.zero_grad()
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
        with torch.no_grad():
            for parameter, same in zip(model.parameters(), _net().double().parameters()):
                assert torch.equal(parameter, same)
        for step in (1, 2):
            _check(model, step, change, dtype=torch.float64)


def _of_another_parameter() -> None:
    """A gradient that is changed when it is on its way already is an error, of each rank that does it."""
    bps.init()
    torch.set_num_threads(1)
    model = DistributedDataParallel(_net())
    last, first = list(model.parameters())[-1], next(iter(model.parameters()))

    def change(_: torch.Tensor) -> None:
        last.grad.mul_(2.0)

    hook = first.register_post_accumulate_grad_hook(change)
    with pytest.raises(RuntimeError, match=r"4\.bias was changed during the backward pass"):
        model(_inputs(0, bps.rank())).square().sum().backward()
    assert not model._reducer.in_flight
    hook.remove()
    _check(model, 1, None)


BODIES = [
    _registered_later,
    _registered_between_the_passes,
    _registered_while_accumulating,
    _another_data_type,
    _of_another_parameter,
]


@pytest.mark.parametrize("body", BODIES)
def test_hooks(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
