"""BytePS under torch.distributed: deadlines, aborts, and calls that are wrong or disagree."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from jobs import Outcomes
from process_group import begin, end


def _timeouts() -> None:
    """Rank 1 comes late: rank 0 waits as long as it was told to, and again."""
    rank, _ = begin()
    group = dist.group.WORLD
    assert group is not None
    if rank == 0:
        group.set_timeout(datetime.timedelta(seconds=0.5))
        work = dist.all_reduce(tensor := torch.ones(3), async_op=True)
        assert work is not None
        with pytest.raises(bps.DeadlineExceededError, match=r"c10d"):
            work.wait()
        assert not work.is_completed(), "it goes on"
        with pytest.raises(bps.DeadlineExceededError, match=r"c10d"):
            dist.broadcast(torch.ones(3), src=1)
        group.set_timeout(datetime.timedelta(minutes=5))
        bps.barrier("rank 1 may come")
        work.wait(datetime.timedelta(minutes=5))
    else:
        bps.barrier("rank 1 may come")
        dist.all_reduce(tensor := torch.ones(3))
        dist.broadcast(torch.ones(3), src=1)
    assert tensor.tolist() == [2.0] * 3
    dist.all_reduce(tensor)
    assert tensor.tolist() == [4.0] * 3
    end()


def _aborted() -> None:
    rank, _ = begin()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert not work.is_completed() and work.exception() is None
        with pytest.raises(bps.DeadlineExceededError):
            work.wait(datetime.timedelta(seconds=0.2))
        dist.group.WORLD.abort()
        with pytest.raises(bps.CancelledError):
            work.wait()
        assert work.is_completed() and not work.is_success() and isinstance(work.exception(), bps.CancelledError)
    else:
        bps.barrier("aborted")
        # The abort and the barrier take different ways. Where the barrier is faster, rank 0's part is here already.
        sums = torch.ones(3)
        try:
            dist.all_reduce(sums)
        except bps.AbortedError as error:
            assert "rank 0" in str(error)
        else:
            assert torch.equal(sums, torch.full((3,), 2.0))
    if rank == 0:
        bps.barrier("aborted")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    end()


def _wrong() -> None:
    end()
    bps.init()
    rank = bps.rank()
    store = dist.HashStore()
    with pytest.raises(ValueError, match=r"torch\.distributed gives this process rank"):
        dist.init_process_group("byteps", store=store, rank=1 - rank, world_size=2)
    bps.shutdown()
    rank, _ = begin()
    with pytest.raises(bps.BytePSError, match=r"c10d"):
        dist.all_reduce(torch.ones(2 + rank))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2, "the group goes on"
    with pytest.raises(NotImplementedError, match="give src"):
        dist.recv(torch.ones(1))
    with pytest.raises(ValueError, match=r"destination rank|this rank"):
        dist.send(torch.ones(1), dst=rank)
    with pytest.raises(ValueError, match="tag"):
        dist.send(torch.ones(1), dst=1 - rank, tag=-1)
    for call, text in (
        (lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2)), "elements"),
        (lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.ones(2)), "elements"),
        (lambda: dist.all_to_all([torch.empty(1)], [torch.ones(1)]), "ranks"),
        (lambda: dist.all_reduce(torch.ones(2).expand(3, 2)), "share memory"),
        (lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [2, 1]), r"add up|split"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=text):
            call()
    dtype = torch.float64 if rank else torch.float32
    # The ranks disagree: each is told, and the group goes on.
    for call in (
        lambda: dist.all_gather([torch.empty(2, dtype=dtype)] * 2, torch.ones(2, dtype=dtype)),
        lambda: dist.reduce_scatter_tensor(torch.empty(1 + rank), torch.ones(2 + 2 * rank)),
        lambda: dist.reduce(torch.ones(2), dst=rank),
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM),
        lambda: dist.scatter(torch.ones(1), [torch.ones(1)] * 2, src=rank),
    ):
        with pytest.raises(bps.FailedPreconditionError, match="agree"):
            call()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2
    # More comes than there is room for.
    with pytest.raises(ValueError, match="have come"):
        dist.all_gather([torch.empty(1), torch.empty(2)], torch.ones(2))
    with pytest.raises(ValueError, match="ranks"):
        dist.all_gather([torch.empty(1)], torch.ones(1))
    end()


BODIES = [_timeouts, _aborted, _wrong]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
