"""A model whose blocks compute their activations again during the backward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    """Takes `features` and gives four. use_reentrant=None: nothing is computed again. `times`: how often the forward
    pass goes through each block, each time in a checkpoint of its own."""

    def __init__(self, features: int, use_reentrant: bool | None, times: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(features, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)] * times)
        self.use_reentrant = use_reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            if self.use_reentrant is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.use_reentrant)
        return hidden
