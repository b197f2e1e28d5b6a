"""BytePS under torch.distributed: deadlines, aborts, and calls that are wrong or disagree."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from jobs import Outcomes
from process_group import begin, end
from torch import nn


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
    # An output of another dtype, which has the right number of bytes or not.
    for output, call in (
        (torch.zeros(4, dtype=torch.float64), lambda out: dist.all_gather_into_tensor(out, torch.ones(2))),
        (torch.zeros(4, dtype=torch.int32), lambda out: dist.all_gather_into_tensor(out, torch.ones(2))),
        (torch.zeros(1, dtype=torch.float64), lambda out: dist.reduce_scatter_tensor(out, torch.ones(2))),
        (torch.zeros(2, dtype=torch.float16), lambda out: dist.all_to_all_single(out, torch.ones(2))),
    ):
        with pytest.raises(ValueError, match=r"must be the same|different dtypes"):
            call(output)
        assert not output.any()
    # More comes than there is room for.
    with pytest.raises(ValueError, match="have come"):
        dist.all_gather([torch.empty(1), torch.empty(2)], torch.ones(2))
    with pytest.raises(ValueError, match="ranks"):
        dist.all_gather([torch.empty(1)], torch.ones(1))
    end()


def _refused_reductions_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    rank, _ = begin()
    other = dist.new_group([0, 1])
    flags, floats = torch.ones(4, dtype=torch.bool), torch.ones(4)
    halves = [torch.empty(2) for _ in range(2)]
    calls: list[Callable[..., object]] = [
        lambda tensor, op: dist.all_reduce(tensor, op),
        lambda tensor, op: dist.all_reduce(tensor, op, group=other),
        lambda tensor, op: dist.all_reduce_coalesced([tensor], op),
        lambda tensor, op: dist.reduce(tensor, 0, op),
        lambda tensor, op: dist.reduce(tensor, 1, op),
        lambda tensor, op: dist.reduce_scatter_tensor(torch.empty(2, dtype=tensor.dtype), tensor, op),
        lambda tensor, op: dist.reduce_scatter(torch.empty(2, dtype=tensor.dtype), list(tensor.split(2)), op),
    ]
    for call in calls:
        if rank == 0:
            with pytest.raises(ValueError, match="average of bool has no meaning"):
                call(flags, dist.ReduceOp.AVG)
            with pytest.raises(ValueError, match="bitwise and of float32 has no meaning"):
                call(floats, dist.ReduceOp.BAND)
        call(floats.clone(), dist.ReduceOp.MAX)
    dist.all_gather(halves, torch.ones(2))
    end()


def test_refused_reductions_use_no_number(run_workers: Callable[..., object]) -> None:
    run_workers(_refused_reductions_use_no_number, BYTEPS_OP_TIMEOUT="20")


def _rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def _ranks_outside_of_the_group() -> None:
    """As roots and as peers they are refused by name, and use no number: the ranks are in step behind them."""
    rank, size = begin()
    group = dist.group.WORLD
    assert group is not None
    own, parts = torch.full((2,), float(rank)), [torch.ones(2) for _ in range(size)]
    calls: list[tuple[str, str, Callable[[int], object]]] = [
        ("broadcast", "root", lambda root: dist.broadcast(own, root)),
        ("broadcast", "root", lambda root: dist.broadcast(own, root, async_op=True)),
        ("broadcast", "root", lambda root: dist.broadcast_object_list([rank], root)),
        ("reduce", "root", lambda root: dist.reduce(own, root)),
        ("gather", "root", lambda root: dist.gather(own, None, root)),
        ("gather", "root", lambda root: group.gather([parts], [own], _rooted(dist.GatherOptions(), root))),
        ("scatter", "root", lambda root: dist.scatter(own, None, root)),
        ("scatter", "root", lambda root: group.scatter([own], [parts], _rooted(dist.ScatterOptions(), root))),
        ("send", "destination", lambda peer: dist.send(own, peer)),
        ("send", "destination", lambda peer: dist.isend(own, peer)),
        ("recv", "source", lambda peer: dist.recv(own, peer)),
        ("recv", "source", lambda peer: dist.irecv(own, peer)),
    ]
    alone = dist.new_group([1])
    for outside in (-1, -size, size, size + 5):
        for operation, what, call in calls:
            if rank == 0:  # it alone, which may go on
                text = f"{operation}: the {what} is rank {outside}; the group '.*' has the ranks 0 to {size - 1}$"
                with pytest.raises(ValueError, match=text):
                    call(outside)
            sums = torch.ones(1)
            dist.all_reduce(sums)
            assert sums.item() == size
        assert own.tolist() == [rank] * 2
        if rank == 1:
            text = rf"the root is rank {outside}; the group .* has the ranks 0 to 0, which are \[1\] of the job"
            with pytest.raises(ValueError, match=text):
                alone.broadcast([own], _rooted(dist.BroadcastOptions(), outside))
    end()


def _ranks_disagree_in_a_backward_pass() -> None:
    """DDP's backward pass raises the operation's own error on each rank, and the next pass is as any other."""
    rank, size = begin()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2), bucket_cap_mb=0.00001)
    state = bps.CommHookState(bps.Compression.fp16 if rank else bps.Compression.none)
    model.register_comm_hook(state, bps.comm_hook)
    for _ in range(2):
        with pytest.raises(bps.FailedPreconditionError, match=r"comm_hook"):
            model(torch.ones(1, 3)).sum().backward()
    state.compression = bps.Compression.none
    model.zero_grad()
    model(torch.full((1, 3), 1.0 + rank)).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((2, 3), (1 + size) / 2))

    def late(gradient: torch.Tensor) -> torch.Tensor:
        futures.append(dist.all_reduce(torch.ones(2 + rank), async_op=True).get_future())
        return gradient

    # A future of a pass that is over by then tells its error itself.
    futures: list[torch.futures.Future[list[torch.Tensor]]] = []
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(late)
    if rank == 0:
        weight.sum().backward()
        bps.barrier("rank 0's pass is over")
    else:
        bps.barrier("rank 0's pass is over")
        with contextlib.suppress(bps.FailedPreconditionError):  # it may be quicker than the end of the pass
            weight.sum().backward()
    if rank == 0:
        with pytest.raises(bps.FailedPreconditionError):
            futures[0].wait()
    end()


def _a_long_timeout() -> None:
    """What the program gives counts, also where it is longer than BYTEPS_OP_TIMEOUT."""
    rank, _ = begin(timeout=datetime.timedelta(minutes=5))
    seconds = float(os.environ["BYTEPS_OP_TIMEOUT"])
    tensors = [torch.ones(3) for _ in range(3)]
    if rank == 0:
        works = [
            dist.all_reduce(tensors[0], async_op=True),
            dist.broadcast(tensors[1], src=1, async_op=True),
            dist.all_gather([torch.empty(3) for _ in range(2)], tensors[2], async_op=True),
        ]
        time.sleep(seconds + 1)  # the deadline that is not to count
    else:
        time.sleep(seconds + 1)
        works = [
            dist.all_reduce(tensors[0], async_op=True),
            dist.broadcast(tensors[1], src=1, async_op=True),
            dist.all_gather([torch.empty(3) for _ in range(2)], tensors[2], async_op=True),
        ]
    for work in works:
        work.wait()
    assert tensors[0].tolist() == [2.0] * 3
    dist.barrier()
    end()


def _the_deadline_of_the_job() -> None:
    """Without a timeout of the program's the job's counts."""
    rank, _ = begin()
    if rank == 0:
        with pytest.raises(bps.DeadlineExceededError):
            dist.all_reduce(torch.ones(3))
    bps.barrier("rank 0 was told", timeout=120)
    end()


@pytest.mark.parametrize("body", [_a_long_timeout, _the_deadline_of_the_job])
def test_deadlines(run_workers: Callable[..., object], body: Callable[[], None]) -> None:
    run_workers(body, BYTEPS_OP_TIMEOUT="2")


def test_the_deadline_by_its_name_of_horovod(run_workers: Callable[..., object]) -> None:
    run_workers(_the_deadline_of_the_job, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="2")


BODIES = [_timeouts, _aborted, _wrong, _ranks_outside_of_the_group, _ranks_disagree_in_a_backward_pass]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
