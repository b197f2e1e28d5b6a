"""A model that FSDP2 shards, and its training beside the same model whole."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn


def require_fsdp2() -> ModuleType:
    """The distributed tensors on which FSDP2 stands; skips where this PyTorch has not both."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no FSDP2")
    return tensors


def train_sharded(
    mesh: dist.device_mesh.DeviceMesh,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    tolerance: float,
) -> None:
    """Sharded over the mesh, with the inputs of this rank, or whole, with those of all: the same weights."""
    from torch.distributed.fsdp import fully_shard  # newer than the oldest PyTorch that the tests run on

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    whole = copy.deepcopy(model)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = [optimizer(one.parameters()) for one in (model, whole)]
    for step in range(3):
        inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(size)]
        for each in optimizers:
            each.zero_grad()
        model(inputs[rank]).square().mean().backward()
        (sum(whole(part).square().mean() for part in inputs) / size).backward()
        for each in optimizers:
            each.step()
    for ours, expected in zip(model.parameters(), whole.parameters()):
        assert torch.allclose(ours.full_tensor(), expected, atol=tolerance)
