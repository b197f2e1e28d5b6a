"""A model with what DistributedDataParallel takes care of, and its training: the weights that come out are compared."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs))))


def train(model: nn.Module, steps: int = 6, no_sync: bool = False) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rank = dist.get_rank()
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        if no_sync:
            with model.no_sync():
                model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return [value.detach().clone() for value in model.state_dict().values()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
