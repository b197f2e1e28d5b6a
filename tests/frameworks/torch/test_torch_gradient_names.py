"""Several models whose parameters have the same names: their gradients meet those of the same model."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.gradient_names import GradientNames
from jobs import Outcomes
from torch import nn


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def _wrap(model: nn.Module, **options: object) -> torch.optim.Optimizer:
    return bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), **options)


def _inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def _loss(models: list[nn.Module], step: int, rank: int) -> torch.Tensor:
    hidden = _inputs(step, rank)
    for model in models:
        hidden = model(hidden)
    return hidden.square().mean()


def _train(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """One backward pass through all models; the ranks' optimizers step in different orders."""
    rank = bps.rank()
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        _loss(models, step, rank).backward()
        for optimizer in optimizers if rank == 0 else reversed(optimizers):
            optimizer.step()
    return [parameter.detach() for model in models for parameter in model.parameters()]


def _expected(seeds: tuple[int, ...], size: int) -> list[torch.Tensor]:
    """The same in one process, with the mean of the ranks' losses."""
    models = [_model(seed) for seed in seeds]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack([_loss(models, step, rank) for rank in range(size)]).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for model in models for parameter in model.parameters()]


def _check(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], *seeds: int) -> None:
    for ours, expected in zip(_train(models, optimizers), _expected(seeds, bps.size())):
        torch.testing.assert_close(ours, expected)


def _two_models() -> None:
    bps.init()
    models = [_model(1), _model(2)]
    _check(models, [_wrap(model) for model in models], 1, 2)


def _whether_an_earlier_one_lives() -> None:
    """Rank 0 keeps it, rank 1 does not, which decides nothing."""
    bps.init()
    kept = [_wrap(_model(3))]
    if bps.rank() == 1:
        kept.clear()
    gc.collect()
    models = [_model(1), _model(2)]
    _check(models, [_wrap(model) for model in models], 1, 2)


def _other_process_sets_count_for_themselves() -> None:
    bps.init()
    alone = bps.add_process_set([0])
    if bps.rank() == 0:
        extra = [_wrap(_model(seed), process_set=alone) for seed in (3, 4)]
        assert len(extra) == 2
    models = [_model(1), _model(2)]
    _check(models, [_wrap(model) for model in models], 1, 2)
    bps.remove_process_set(alone)


def _unnamed_in_overlapping_sets() -> None:
    """Rank 1 is in both sets, and has made another optimizer when rank 2 makes its first."""
    bps.init()
    sets = [bps.add_process_set([0, 1]), bps.add_process_set([1, 2])]
    for ranks in sets:
        if not ranks.included():
            continue
        weight = nn.Parameter(torch.zeros(3))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=ranks)
        (weight.sum() * (1.0 + bps.rank())).backward()
        optimizer.step()
        assert weight.tolist() == [-0.5 - sum(ranks.ranks) / 2 - 0.5] * 3


def test_unnamed_in_overlapping_sets(run_workers: Callable[..., Any]) -> None:
    run_workers(_unnamed_in_overlapping_sets, workers=3, BYTEPS_OP_TIMEOUT="30")


def _a_new_session() -> None:
    """As in an elastic job: one rank goes on with the optimizers it has, the other has come anew."""
    bps.init()
    models = [_model(1), _model(2)]
    optimizers = [_wrap(model) for model in models]
    if bps.rank() == 1:
        _wrap(_model(3))
    bps.shutdown()
    bps.init()
    if bps.rank() == 1:
        models = [_model(1), _model(2)]
        optimizers = [_wrap(model) for model in models]
    _check(models, optimizers, 1, 2)


BODIES = [
    _a_new_session,
    _two_models,
    _whether_an_earlier_one_lives,
    _other_process_sets_count_for_themselves,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _names(named: list[tuple[str, torch.Tensor]]) -> list[str]:
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=1)
    return [name for name, _ in GradientNames(optimizer, named).gradients]


def test_numbers(alone: None) -> None:
    a, b, c = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    assert _names([("x", a), ("y", b)]) == ["Gradient.x", "Gradient.y"]
    assert _names([("x", a)]) == ["Gradient.x"], "of the same parameter"
    assert _names([("x", b), ("z", c)]) == ["Gradient.x#2", "Gradient.z#2"], "one of them is another's"
    assert _names([("x", c)]) == ["Gradient.x#3"]
    assert _names([("z", a)]) == ["Gradient.z"], "nobody's yet"
    assert _names([("x", b)]) == ["Gradient.x#2"], "again"
    assert [name.split(".")[1] for name in _names([("x", a), ("y", c)])] == ["x#4", "y#4"]
    for number in range(5, 65):
        assert _names([("x", nn.Parameter(torch.zeros(1)))]) == [f"Gradient.x#{number}"], "also of those that died"
    assert _names([("x", nn.Parameter(torch.zeros(1)))]) == ["Gradient.x#3"], "the one given longest ago"
    bps.shutdown()
    bps.init()
    assert _names([("x", c)]) == ["Gradient.x"]


def test_the_given_names_have_no_numbers(alone: None) -> None:
    for _ in range(2):
        model = _model(1)
        optimizer = _wrap(model)
        assert list(optimizer._parameter_names.values()) == [name for name, _ in model.named_parameters()]
