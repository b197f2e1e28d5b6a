"""Data loaders start processes beside BytePS: by fork, which copies a process the library runs in, and by spawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from torch.utils.data import DataLoader, Dataset

RunWorkers = Callable[..., Any]


class _Numbers(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class _Meddling(_Numbers):
    """Calls BytePS where it must not."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return bps.push_pull(torch.tensor([float(index)]), name="in a data loader")


def _train(method: str, epochs: int) -> float:
    bps.init()
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)])
    for _ in range(epochs):
        loader = DataLoader(
            _Numbers(), batch_size=8, num_workers=2, multiprocessing_context=method, persistent_workers=False
        )
        for batch in loader:
            optimizer.zero_grad()
            (parameter * batch.mean()).sum().backward()
            optimizer.step()
    return parameter.item()


@pytest.mark.parametrize(("method", "epochs"), [("fork", 3), ("spawn", 1)])
def test_training_with_a_data_loader(run_workers: RunWorkers, method: str, epochs: int) -> None:
    assert run_workers(_train, method, epochs).results == [-252.0 * epochs] * 2


def _meddle(method: str) -> str:
    bps.init()
    loader = DataLoader(_Meddling(), batch_size=8, num_workers=1, multiprocessing_context=method)
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert bps.push_pull(torch.ones(1), average=False, name="afterwards").item() == 2
    return str(raised.value)


def test_a_forked_data_loader_that_uses_byteps(run_workers: RunWorkers) -> None:
    for message in run_workers(_meddle, "fork").results:
        assert "FailedPreconditionError" in message
        assert "was forked from process" in message


def test_a_spawned_data_loader_that_uses_byteps(run_workers: RunWorkers) -> None:
    for message in run_workers(_meddle, "spawn").results:
        assert "call bps.init() first" in message
