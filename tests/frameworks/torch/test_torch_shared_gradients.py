"""Gradients whose memory something else has: the rest of the backward pass, another parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from torch import nn

STEPS = 5
# Small ones are sent within messages, large ones may go through buffers of BytePS's own.
SIZES = (16, 512)


class _Encoded(nn.Module):
    """With one sequence in the batch, the gradient of `place` is a view of the one that `encoder` reads next."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(size, size), nn.Linear(size, 1)
        self.place = nn.Parameter(torch.randn(size, size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.encoder(inputs) + self.place.unsqueeze(0)))


class _TwoOfOne(nn.Module):
    """The gradients of both parameters are one memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.token, self.place = (nn.Parameter(torch.randn(size, size)) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.token.unsqueeze(0) + self.place.unsqueeze(0)) * inputs


class _Parts(nn.Module):
    """The gradient of `prompt` is a part of the one that `other` reads next."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder, self.other = nn.Linear(size, size), nn.Linear(size, size)
        self.prompt = nn.Parameter(torch.randn(size, size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs[0]
        return torch.tanh(self.other(torch.cat([rows, rows])) + torch.cat([self.prompt, self.encoder(rows)]))


def _inputs(size: int, step: int, rank: int) -> torch.Tensor:
    return torch.randn(1, size, size, generator=torch.Generator().manual_seed(100 * step + rank)) * (rank + 1)


def _average(model: nn.Module, size: int, step: int) -> list[torch.Tensor]:
    """The average of all ranks' gradients, by this process alone."""
    of_ranks = [
        torch.autograd.grad(model(_inputs(size, step, rank)).sum(), list(model.parameters()))
        for rank in range(bps.size())
    ]
    return [sum(gradients) / bps.size() for gradients in zip(*of_ranks)]


def _compare(model: nn.Module, expected: list[torch.Tensor]) -> None:
    for (name, parameter), gradient in zip(model.named_parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item())
        rows = bps.allgather(parameter.grad.reshape(1, -1), name=f"compared.{name}")
        assert (rows == rows[0]).all(), name  # the same bits on all ranks


def _optimizer(**options: Any) -> None:
    bps.init()
    for number, kind in enumerate((_Encoded, _TwoOfOne, _Parts)):
        for size in SIZES:
            torch.manual_seed(0)
            model = kind(size)
            alone = copy.deepcopy(model)
            named = [(f"{number}.{size}.{name}", parameter) for name, parameter in model.named_parameters()]
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), named, **options)
            for step in range(STEPS):
                optimizer.zero_grad()
                model(_inputs(size, step, bps.rank())).sum().backward()
                optimizer.synchronize()
                _compare(model, _average(alone, size, step))


def _plain() -> None:
    _optimizer()


def _predivided() -> None:
    _optimizer(gradient_predivide_factor=2.0)


def _grouped() -> None:
    _optimizer(groups=1)


def _in_place_alone() -> None:
    _optimizer(gradient_buffers=False)


def _data_parallel() -> None:
    bps.init()
    for kind in (_Encoded, _TwoOfOne, _Parts):
        for size in SIZES:
            torch.manual_seed(0)
            model = kind(size)
            alone = copy.deepcopy(model)
            parallel = bps.parallel.DistributedDataParallel(model)
            for step in range(STEPS):
                model.zero_grad()
                parallel(_inputs(size, step, bps.rank())).sum().backward()
                _compare(model, _average(alone, size, step))


def _expanded_on_one_rank() -> None:
    """A gradient that the program has made meets those of the others."""
    bps.init()
    parameter = nn.Parameter(torch.zeros(4, 6))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)])
    ones = torch.ones(1) if bps.rank() == 0 else torch.ones(4, 6)
    parameter.grad = ones.expand(4, 6)
    optimizer.step()
    assert (parameter == -1).all()


def _other_memory_under_a_gradient() -> None:
    """`p.grad.data = ...` between backward() and step() would be stepped with as it is."""
    bps.init()
    for compression in (bps.Compression.none, bps.Compression.fp16):  # the short way, and the other
        parameter = nn.Parameter(torch.zeros(4, 6))
        named = [(f"{compression.__name__}", parameter)]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), named, compression=compression)
        parameter.square().sum().backward()
        parameter.grad.data = torch.full((4, 6), float(bps.rank()))
        with pytest.raises(RuntimeError, match="was changed"):
            optimizer.step()


BODIES = [
    _plain,
    _predivided,
    _grouped,
    _in_place_alone,
    _data_parallel,
    _expanded_on_one_rank,
    _other_memory_under_a_gradient,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
