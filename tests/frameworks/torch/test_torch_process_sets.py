"""Process sets: operations among some of the ranks, and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from byteps.horovod.common.process_sets import ProcessSet
from torch import nn

RunWorkers = Callable[..., Any]


def _operations() -> None:
    """Evens and odds, each among themselves, at the same time and under the same names."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    evens = hvd.add_process_set(range(0, size, 2))
    odds = hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))
    assert [evens.process_set_id, odds.process_set_id] == [1, 2]
    mine, other = (evens, odds) if rank % 2 == 0 else (odds, evens)
    ranks = mine.ranks
    place, count, root = ranks.index(rank), len(ranks), ranks[-1]
    assert (mine.size(), mine.rank(), mine.included()) == (count, place, True)
    assert (other.size(), other.included()) == (len(other.ranks), False)
    with pytest.raises(ValueError, match="not part"):
        other.rank()

    def full(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape or (3,), float(value))

    total = sum(ranks)
    for name in (None, "x"):
        kwargs: dict[str, Any] = {"name": name, "process_set": mine}
        assert torch.equal(hvd.allreduce(full(rank), op=hvd.Sum, **kwargs), full(total))
        assert torch.equal(hvd.allreduce(full(rank), **kwargs), full(total / count))
        assert hvd.allreduce(torch.tensor([-1 - place]), **kwargs).item() == int(-sum(range(1, count + 1)) / count)
        assert torch.equal(hvd.allreduce(full(2), op=hvd.Sum, prescale_factor=0.5, **kwargs), full(count))
        tensor = full(rank)
        assert hvd.allreduce_(tensor, op=hvd.Max, **kwargs) is tensor and torch.equal(tensor, full(ranks[-1]))
        results = hvd.grouped_allreduce([full(rank), full(1, 2)], op=hvd.Sum, **kwargs)
        assert torch.equal(results[0], full(total)) and torch.equal(results[1], full(count, 2))
        assert torch.equal(hvd.broadcast(full(rank), root, **kwargs), full(root))
        tensor = full(rank)
        assert hvd.broadcast_(tensor, root, **kwargs) is tensor and torch.equal(tensor, full(root))
        assert hvd.allgather(full(rank, 1), **kwargs).tolist() == ranks
        assert hvd.grouped_allgather([full(rank, 1)], **kwargs)[0].tolist() == ranks
        assert torch.equal(hvd.reducescatter(full(rank, count), op=hvd.Sum, **kwargs), full(total, 1))
        assert hvd.alltoall(full(rank, count), **kwargs).tolist() == ranks
        assert hvd.broadcast_object({"from": rank}, root, **kwargs) == {"from": root}
        assert hvd.allgather_object(rank, **kwargs) == ranks
    hvd.barrier(mine)
    hvd.barrier(process_set=mine, name="named")
    # Every rank, at the same time as the two.
    handles = [
        hvd.allreduce_async(full(rank), op=hvd.Sum, name="y", process_set=mine),
        hvd.allreduce_async(full(rank), op=hvd.Sum, name="y"),
    ]
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == [total, sum(range(size))]
    # Gradients stay within the set.
    for function, expected in (
        (lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, process_set=mine), float(count)),
        (lambda tensor: hvd.allgather(tensor, process_set=mine), 1.0),
        (lambda tensor: hvd.alltoall(tensor, process_set=mine), 1.0),
        (lambda tensor: hvd.broadcast(tensor, root, process_set=mine), 1.0 if rank == root else 0.0),
    ):
        tensor = torch.ones(count, requires_grad=True)
        function(tensor).sum().backward()
        assert torch.equal(tensor.grad, full(expected, count))
    # Parameters and state of some ranks.
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, float(rank))
    hvd.broadcast_parameters(model.state_dict(), root, process_set=mine)
    assert torch.equal(model.weight, full(root, 2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank, momentum=0.9)
    hvd.broadcast_optimizer_state(optimizer, root, process_set=mine)
    assert optimizer.param_groups[0]["lr"] == 1.0 + root
    # A set of one rank.
    alone = hvd.add_process_set([0])
    if rank == 0:
        assert torch.equal(hvd.allreduce(full(5), process_set=alone), full(5))
    hvd.shutdown()


def _lives() -> None:
    """Sets are added, removed, added again, and end with the session."""
    some = hvd.ProcessSet([1, 0])
    same = ProcessSet([0, 1])
    assert (some.ranks, some.process_set_id, some.size(), some.rank(), some.included()) == ([0, 1], *[None] * 4)
    ours = hvd.global_process_set
    assert (ours.process_set_id, ours.ranks, ours.size()) == (0, None, None)
    hvd.init(process_sets=[some, same])
    size = hvd.size()
    assert some.process_set_id == 1 and same.process_set_id is None, "a duplicate stays unknown"
    hvd.init(process_sets=[some])
    assert some.process_set_id == 1
    assert str(ours) == f"ProcessSet(process_set_id=0, ranks={list(range(size))}, mpi_comm=None)"
    for duplicate in ([1, 0], same, range(size), hvd.global_process_set):
        with pytest.raises(ValueError, match="duplicate"):
            hvd.add_process_set(duplicate)
    if some.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=some).item() == 2
    assert hvd.remove_process_set(some) and some.process_set_id is None and some.size() is None
    assert not hvd.remove_process_set(some) and not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="add_process_set"):
        hvd.allreduce(torch.ones(1), process_set=some)
    hvd.add_process_set(some)
    assert some.process_set_id == 2
    for copied in (copy.deepcopy(some), pickle.loads(pickle.dumps(some))):
        assert copied.ranks == [0, 1] and copied.process_set_id is None
    assert pickle.loads(pickle.dumps(ours)) is ours and copy.deepcopy(ours) is ours
    # One that an operation uses stays.
    if hvd.rank() == 0:
        handle = hvd.allgather_async(torch.ones(1), name="late", process_set=some)
        assert not hvd.remove_process_set(some) and some.included()
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allgather_async(torch.ones(1), name="late", process_set=some)
    if some.included():
        assert hvd.synchronize(handle).tolist() == [1, 1]
    for wrong, error in (([0, 0], ValueError), ([size], ValueError), ([-1], ValueError), ([], ValueError)):
        with pytest.raises(error):
            hvd.add_process_set(wrong)
    for wrong in (3, "01", [0.5], None):
        with pytest.raises(ValueError, match="list of ranks"):
            hvd.ProcessSet(wrong)
    for wrong in ([0], 1, None, "global"):
        with pytest.raises(TypeError, match="ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=wrong)
    hvd.shutdown()
    hvd.init()
    with pytest.raises(ValueError, match="does not know"):
        hvd.allreduce(torch.ones(1), process_set=some)
    hvd.add_process_set(some)
    if some.included():
        assert hvd.allgather(torch.ones(1), process_set=some).tolist() == [1, 1]
    hvd.shutdown()
    with pytest.raises(TypeError, match="process_sets"):
        hvd.init(process_sets=[[0, 1]])
    assert not hvd.is_initialized()


def _wrong() -> list[str]:
    """Ranks outside, roots outside, and ranks that disagree: within the set alone, and it goes on."""
    hvd.init()
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 2])
    ones = torch.ones(2)
    if rank == 1:
        for call in (
            lambda: hvd.allreduce(ones, process_set=pair),
            lambda: hvd.allgather(ones, process_set=pair),
            lambda: hvd.broadcast(ones, 0, process_set=pair),
            lambda: hvd.broadcast_object(1, 0, process_set=pair),
            lambda: hvd.allgather_object(1, process_set=pair),
            lambda: hvd.barrier(pair),
        ):
            with pytest.raises(ValueError, match="this rank, 1 is not in"):
                call()
        texts = []
    else:
        with pytest.raises(ValueError, match="root_rank is 1; the process set has ranks 0, 2"):
            hvd.broadcast(ones, 1, process_set=pair)
        texts = []
        for call in (
            lambda: hvd.allreduce(torch.ones(2 + rank), name="shape", process_set=pair),
            lambda: hvd.allreduce(ones.to(torch.int32 if rank else torch.int64), name="dtype", process_set=pair),
            lambda: hvd.allreduce(ones, op=hvd.Sum if rank else hvd.Max, name="op", process_set=pair),
            lambda: hvd.broadcast(ones, rank, name="root", process_set=pair),
        ):
            with pytest.raises(hvd.FailedPreconditionError) as caught:
                call()
            texts.append(str(caught.value).partition("agree")[2])
            assert "rank 0" in texts[-1] and "rank 2" in texts[-1], texts
            assert hvd.allreduce(ones, name="shape", process_set=pair).tolist() == [1, 1]
    # One asks among two, the other among all: they do not meet, and both are told which ranks are missing.
    with pytest.raises(hvd.DeadlineExceededError) as late:
        if rank == 0:
            request = hvd.allgather_async(ones, name="apart", process_set=pair)
        else:
            request = hvd.allgather_async(ones, name="apart")
        request.synchronize()
    missing = {0: "2", 1: "0", 2: "0"}[rank]
    assert re.search(rf'"allgather\.apart".* not submitted by .*rank {missing} ', str(late.value)), late.value
    assert rank != 0 or "by rank 1" not in str(late.value), "rank 1 is not in the set"
    hvd.barrier()
    assert hvd.allgather(ones).shape == (6,)
    return texts


def test_operations(run_workers: RunWorkers) -> None:
    run_workers(_operations, workers=4, servers=0)


def test_operations_with_a_server(run_workers: RunWorkers) -> None:
    run_workers(_operations, workers=3, servers=1)


def test_lives(run_workers: RunWorkers) -> None:
    run_workers(_lives, workers=3, servers=0)


def test_wrong(run_workers: RunWorkers) -> None:
    results = run_workers(_wrong, workers=3, servers=0, BYTEPS_OP_TIMEOUT="3").results
    assert results[0] == results[2] and len(results[0]) == 4
