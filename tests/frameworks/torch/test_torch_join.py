"""join(): ranks that have more data than others train on, and all end alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from torch import nn

RunWorkers = Callable[..., Any]


def _uneven() -> tuple[int, list[torch.Tensor], list[float]]:
    """Rank r has 2 + r batches."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    seen = []
    for step in range(2 + rank):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(step))).sum().backward()
        optimizer.step()
        seen.append(hvd.allreduce(torch.ones(1), name="count", op=hvd.Sum).item())
    assert seen == [float(size if step < 2 else size - (step - 1)) for step in range(2 + rank)]
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), last)
    with pytest.raises(TypeError, match="device"):
        hvd.join("cpu")
    return last, [parameter.detach().clone() for parameter in model.parameters()], seen


def _refused_meanwhile() -> None:
    """What has no result with zeros is an error that names the joined rank; when all have joined it works again."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if rank == 0:
        assert hvd.join() in range(1, size)
    else:
        for call in (
            lambda: hvd.allgather(torch.ones(2), name="rows"),
            lambda: hvd.allreduce(torch.ones(2), op=hvd.Max, name="max"),
            lambda: hvd.broadcast(torch.ones(2), 1, name="one"),
        ):
            with pytest.raises(hvd.FailedPreconditionError, match="joined"):
                call()
        assert hvd.reducescatter(torch.ones(size), op=hvd.Sum, name="part").item() == size - 1
        hvd.join()
    assert hvd.allgather(torch.ones(2), name="rows").shape == (2 * size,)
    assert hvd.allreduce(torch.full((2,), float(rank)), op=hvd.Max, name="max")[0].item() == size - 1


@pytest.mark.parametrize("servers", [0, 1])
def test_uneven_data(run_workers: RunWorkers, servers: int) -> None:
    results = run_workers(_uneven, workers=3, servers=servers).results
    assert [last for last, _, _ in results] == [2] * 3
    for _, parameters, _ in results:
        assert all(torch.equal(one, other) for one, other in zip(parameters, results[2][1]))


def test_refused_meanwhile(run_workers: RunWorkers) -> None:
    run_workers(_refused_meanwhile, workers=3, servers=0, BYTEPS_OP_TIMEOUT="60")
