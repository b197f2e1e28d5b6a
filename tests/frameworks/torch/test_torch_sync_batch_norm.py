"""SyncBatchNorm beside torch's BatchNorm of the whole batch: values, gradients, running statistics."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from jobs import Outcomes
from torch import nn


def _batches(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Of each rank one; they are not alike."""
    source = torch.Generator().manual_seed(3)
    rows = [shape[0] + other for other in range(hvd.size())]
    return [(torch.randn(n, *shape[1:], generator=source) * (1 + k) + k).to(dtype) for k, n in enumerate(rows)]


def _beside_the_whole_batch() -> None:
    hvd.init()
    rank = hvd.rank()
    for shape, options in (
        ((3, 4), {}),
        ((2, 3, 5), {"momentum": None}),
        ((2, 3, 4, 5), {"affine": False}),
        ((2, 3, 2, 2, 2), {"track_running_stats": False, "eps": 1e-3}),
    ):
        kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
        ours, whole = hvd.SyncBatchNorm(shape[1], **options), kind(shape[1], **options)
        for module in (ours, whole):
            for parameter in module.parameters():
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.dim()))
        for _ in range(3):
            batches = _batches(shape)
            begin = sum(len(batch) for batch in batches[:rank])
            mine = batches[rank].clone().requires_grad_()
            every = torch.cat(batches).requires_grad_()
            weights = torch.linspace(-1, 2, every.numel()).view_as(every)
            result, expected = ours(mine), whole(every)
            rows = slice(begin, begin + len(mine))
            assert torch.allclose(result, expected[rows], rtol=1e-4, atol=1e-5), shape
            (result * weights[rows]).sum().backward()
            (expected * weights).sum().backward()
            assert torch.allclose(mine.grad, every.grad[rows], rtol=1e-4, atol=1e-5), shape
        for own, one in zip(ours.parameters(), whole.parameters()):
            total = hvd.allreduce(own.grad, op=hvd.Sum)
            assert torch.allclose(total, one.grad, rtol=1e-4, atol=1e-4)
        assert list(ours.state_dict()) == list(whole.state_dict())
        for own, one in zip(ours.buffers(), whole.buffers()):
            assert torch.allclose(own, one, rtol=1e-5, atol=1e-6)
        ours.eval(), whole.eval()
        if ours.track_running_stats and rank == 0:  # no other rank takes part
            assert torch.allclose(ours(batches[0]), whole(batches[0]), rtol=1e-4, atol=1e-5)


def _kinds_of_input() -> None:
    hvd.init()
    rank = hvd.rank()
    half = hvd.SyncBatchNorm(4)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        mine = _batches((8, 4), dtype)[rank].requires_grad_()
        result = half(mine)
        assert result.dtype == dtype
        result.sum().backward()
        assert mine.grad.dtype == dtype
    # Nothing on one rank.
    module = hvd.SyncBatchNorm(2)
    mine = torch.arange(8.0).view(4, 2).requires_grad_() if rank else torch.empty(0, 2, requires_grad=True)
    result = module(mine)
    result.square().sum().backward()
    expected = nn.BatchNorm1d(2)(torch.arange(8.0).view(4, 2))
    assert torch.allclose(result, expected if rank else result) and result.shape == mine.shape
    with pytest.raises(ValueError, match="more than 1"):
        module(torch.ones(1 - rank, 2))
    assert module(torch.ones(2, 2)).shape == (2, 2)
    alone = hvd.add_process_set([0])
    if rank == 0:
        own = hvd.SyncBatchNorm(2, process_set=alone)
        batch = torch.arange(8.0).view(4, 2)
        assert torch.allclose(own(batch), nn.BatchNorm1d(2)(batch))
    for call, error, text in (
        (lambda: module(torch.ones(2)), ValueError, "2D"),
        (lambda: module(torch.ones(2, 3)), ValueError, "channels"),
        (lambda: hvd.SyncBatchNorm(2, process_set=[0])(torch.ones(2, 2)), TypeError, "ProcessSet"),
    ):
        with pytest.raises(error, match=text):
            call()


def _in_training() -> None:
    """A converted network with the gradients averaged: as one process with the whole batch."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    assert type(model[1]) is hvd.SyncBatchNorm and type(whole[1]) is nn.BatchNorm2d
    assert type(hvd.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))) is hvd.SyncBatchNorm
    reference = torch.optim.SGD(whole.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(5):
        source = torch.Generator().manual_seed(step)
        every = torch.randn(4 * size, 1, 6, 6, generator=source)
        for network, batch, steps in ((model, every[4 * rank :][:4], optimizer), (whole, every, reference)):
            steps.zero_grad()
            network(batch).square().mean().backward()
            steps.step()
    for own, one in zip(model.state_dict().values(), whole.state_dict().values()):
        assert torch.allclose(own, one, rtol=1e-3, atol=1e-5)


def _copies() -> None:
    """A copy, and one that was pickled, train with the same ranks."""
    hvd.init()
    rank = hvd.rank()
    alone = hvd.add_process_set([rank])
    for process_set in (hvd.global_process_set, alone):
        model = hvd.SyncBatchNorm(2, process_set=process_set)
        other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(rank))
        assert torch.equal(model(inputs), other(inputs))
        assert torch.equal(model.running_mean, other.running_mean)


BODIES = [_beside_the_whole_batch, _kinds_of_input, _in_training, _copies]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
