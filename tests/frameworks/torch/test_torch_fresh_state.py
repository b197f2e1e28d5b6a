"""broadcast_optimizer_state of an optimizer that has taken no step: what programs find afterwards, and that training
goes on as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from torch import nn

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGD with dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1, weight_decay=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1, weight_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1, t0=2.0, weight_decay=0.1),
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_training_goes_on_as_from_the_beginning(alone: None, name: str, distributed: bool) -> None:
    model = _model()
    expected = _train(model, OPTIMIZERS[name](model.parameters()))

    model = _model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = OPTIMIZERS[name](model.parameters())
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    if distributed:
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())), "parameters keep their values"
    assert {key: value for key, value in optimizer.param_groups[0].items() if key != "params"} == options
    assert optimizer.state or name == "SGD"
    if name != "Adagrad":  # has state from the beginning
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(_train(model, optimizer), expected))


def test_frozen_parameters_get_no_gradient(alone: None) -> None:
    model = _model()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bps.broadcast_optimizer_state(optimizer, 0)
    assert model[0].weight.grad is None and model[0].bias.grad is not None


def test_sparse_gradients_by_the_model(alone: None) -> None:
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    with pytest.raises(RuntimeError, match="dense gradients"):
        bps.broadcast_optimizer_state(optimizer, 0)
    model.weight.grad = None
    before = model.weight.detach().clone()
    bps.broadcast_optimizer_state(optimizer, 0, model=model)
    assert optimizer.state and model.weight.grad.is_sparse
    assert torch.equal(model.weight, before)
    bps.broadcast_optimizer_state(torch.optim.SparseAdam(list(model.parameters())), 0, model)


def test_embeddings_have_dense_state(alone: None) -> None:
    """Where the optimizer takes dense gradients as well: one that began with sparse ones could not be broadcast."""
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bps.broadcast_optimizer_state(optimizer, 0, model=model)
    assert model.weight.grad.is_sparse and optimizer.state[model.weight]["momentum_buffer"].layout is torch.strided
    wrapped = bps.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters(), sparse_as_dense=True
    )
    bps.broadcast_optimizer_state(wrapped, 0, model=model)
    assert not model.weight.grad.is_sparse and wrapped.state
    model(torch.tensor([1])).sum().backward()
    wrapped.step()


def test_state_that_is_there_is_left_alone(alone: None) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    _train(model, optimizer)
    gradient = model[0].weight.grad.clone()
    bps.broadcast_optimizer_state(optimizer, 0)
    assert torch.equal(model[0].weight.grad, gradient)
    assert optimizer.state[model[0].weight]["step"].item() == 6
