"""DistributedOptimizer and torch.compile: the bits of training without overlap, whenever and whatever is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from torch import nn

STEPS = 5

Prepare = Callable[[nn.Module], nn.Module]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 24)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)) for _ in range(3)
        )
        self.out = nn.Linear(24, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embedding(tokens)
        for block in self.blocks:
            values = values + block(values)
        return self.out(values)


def _compiled(module: nn.Module) -> Any:
    # Traced, functionalized and differentiated ahead of time, as for inductor, without waiting for a C++ compiler.
    return torch.compile(module, backend="aot_eager")


def _nothing(model: nn.Module) -> nn.Module:
    return model


def _whole(model: nn.Module) -> nn.Module:
    return _compiled(model)


def _in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def _blocks(model: nn.Module) -> nn.Module:
    model.blocks = nn.ModuleList(_compiled(block) for block in model.blocks)
    return model


def _train(before: Prepare, after: Prepare, overlap: bool, late: bool) -> list[torch.Tensor]:
    """The parameters behind each step, and behind the last. `before` and `after` the optimizer is made."""
    torch.manual_seed(5)
    torch._dynamo.reset()
    model = before(_Net())
    tensors = torch.randint(0, 16, (STEPS, 4, 10), generator=torch.Generator().manual_seed(bps.rank()))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        overlap_forward=model if overlap else None,
    )
    bps.broadcast_parameters(model.state_dict())
    run = model
    if not late:
        run = after(model)
    losses = []
    for step in range(STEPS):
        if late and step == 2:
            run = after(model)
        optimizer.zero_grad()
        values = run(tensors[step])
        loss = nn.functional.cross_entropy(values.flatten(0, 1), tensors[step].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach().clone() for parameter in model.parameters())]


def _compare(before: Prepare = _nothing, after: Prepare = _nothing, late: bool = False) -> None:
    bps.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo's own
        expected = _train(before, after, False, late)
        ours = _train(before, after, True, late)
        assert len(ours) == len(expected)
        for index, (one, other) in enumerate(zip(ours, expected)):
            assert torch.equal(one, other), index


def _first_the_model() -> None:
    _compare(before=_whole)


def _first_the_model_in_place() -> None:
    _compare(before=_in_place)


def _first_its_blocks() -> None:
    _compare(before=_blocks)


def _then_the_model() -> None:
    _compare(after=_whole)


def _then_the_model_in_place() -> None:
    _compare(after=_in_place)


def _in_the_middle() -> None:
    _compare(after=_whole, late=True)


def _graphs_are_whole() -> None:
    """A compiled model waits before its call, not within: nothing breaks its graph."""
    bps.init()
    torch._dynamo.reset()
    model = torch.compile(_Net(), backend="aot_eager", fullgraph=True)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=model
    )
    bps.broadcast_parameters(model.state_dict())
    tokens = torch.arange(16).reshape(2, 8)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
    optimizer.finish_step()


BODIES = [
    _first_the_model,
    _first_the_model_in_place,
    _first_its_blocks,
    _then_the_model,
    _then_the_model_in_place,
    _in_the_middle,
    _graphs_are_whole,
]


@pytest.mark.parametrize("body", BODIES)
def test_compiled(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
