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


def _unnamed() -> None:
    """Rank r has 3 + r batches in even epochs; rank 0 has most in odd ones. Operations without names, of all ranks and
    of some, meet again behind each join(); objects that were made before it keep the names they have."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    pair = hvd.add_process_set([0, 1])
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in range(3):
        for step in range(3 + (rank if epoch % 2 == 0 else size - 1 - rank)):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(step + rank))).sum().backward()
            optimizer.step()
            handles = [hvd.allreduce_async(torch.full((2,), value), op=hvd.Sum) for value in (10.0, 20.0)]
            loss, accuracy = (hvd.synchronize(handle)[0].item() for handle in handles)
            assert accuracy == 2 * loss and loss % 10 == 0
            if rank < 2:
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() in (1.0, 2.0)
        if rank == size - 1 and epoch == 0:  # rank 0 has joined
            with pytest.raises(hvd.FailedPreconditionError, match="joined"):
                hvd.allgather(torch.ones(1))
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), last)
        handles = [hvd.allreduce_async(torch.full((2,), value + rank)) for value in (10.0, 20.0)]
        assert [hvd.synchronize(handle)[0].item() for handle in handles] == [11.0, 21.0]
        assert torch.equal(hvd.allgather(torch.tensor([rank])), torch.arange(size))
        assert torch.equal(hvd.broadcast(torch.tensor([rank]), 1), torch.tensor([1]))
        assert hvd.allgather_object(rank) == list(range(size))
        if rank < 2:
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
    other = nn.Linear(4, 2)
    hvd.broadcast_parameters(other.state_dict(), 0)
    second = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    assert set(second._parameter_names.values()).isdisjoint(optimizer._parameter_names.values())
    (model(torch.ones(1, 4)) + other(torch.ones(1, 4))).sum().backward()  # gradients of both are on their way at once
    optimizer.step()
    second.step()
    hvd.shutdown()


@pytest.mark.parametrize("servers", [0, 1])
def test_unnamed_operations_meet_again(run_workers: RunWorkers, servers: int) -> None:
    run_workers(_unnamed, workers=3, servers=servers, BYTEPS_OP_TIMEOUT="60")


def _in_flight() -> None:
    """What was started without a name before join() and has not ended behind it: new operations have other names."""
    hvd.init()
    for _ in range(4):
        handles = [hvd.allreduce_async(torch.full((500_000,), value)) for value in (1.0, 2.0)]
        hvd.join()
        handles += [hvd.allreduce_async(torch.full((500_000,), value)) for value in (3.0, 4.0)]
        assert [hvd.synchronize(handle)[-1].item() for handle in handles] == [1.0, 2.0, 3.0, 4.0]
    hvd.shutdown()


def test_operations_in_flight_keep_their_names(run_workers: RunWorkers) -> None:
    run_workers(_in_flight, workers=2, servers=1, BYTEPS_OP_TIMEOUT="60")


@pytest.mark.parametrize("servers", [0, 1])
def test_uneven_data(run_workers: RunWorkers, servers: int) -> None:
    results = run_workers(_uneven, workers=3, servers=servers).results
    assert [last for last, _, _ in results] == [2] * 3
    for _, parameters, _ in results:
        assert all(torch.equal(one, other) for one, other in zip(parameters, results[2][1]))


def test_refused_meanwhile(run_workers: RunWorkers) -> None:
    run_workers(_refused_meanwhile, workers=3, servers=0, BYTEPS_OP_TIMEOUT="60")
