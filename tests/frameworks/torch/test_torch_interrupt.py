"""While a thread waits, other Python threads run; and Ctrl-C ends the wait, after which the job goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from interrupts import interrupted
from torch import nn

RunWorkers = Callable[..., Any]


def _operations() -> None:
    """Rank 1 takes part when rank 0 was interrupted."""
    bps.init()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group("byteps", init_method="byteps://")
    rank, ones = bps.rank(), torch.ones(3)
    starts: dict[str, Callable[[], Any]] = {
        "push_pull": lambda: bps.push_pull_async(ones, name="x", average=False),
        "allreduce": lambda: bps.allreduce_async(ones, name="x", op=bps.Sum, prescale_factor=2.0),
        "allgather": lambda: bps.allgather_async(ones, name="x"),
        "group": lambda: bps.grouped_allreduce_async([ones, ones], name="x"),
        "sparse": lambda: bps.sparse_allreduce_async(ones.to_sparse(), name="x"),
        "torch.distributed": lambda: dist.all_gather([torch.empty(3), torch.empty(3)], ones, async_op=True),
    }
    for name, start in starts.items():
        wait = (lambda work: work.wait()) if name == "torch.distributed" else bps.synchronize
        if rank == 0:
            handle = start()
            with interrupted():
                wait(handle)
        bps.barrier(f"{name}, interrupted")
        if rank == 1:
            handle = start()
        found = wait(handle)
        if name == "push_pull":
            assert torch.equal(found, 2 * ones)
    dist.destroy_process_group()


def test_operations(run_workers: RunWorkers) -> None:
    run_workers(_operations, BYTEPS_OP_TIMEOUT="200")


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300))


def _backward(model: nn.Module) -> None:
    model(torch.full((2, 4), bps.rank() + 1.0)).square().sum().backward()


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _training(way: str, give_up: bool) -> torch.Tensor:
    """Rank 0 is interrupted in its first step, before rank 1 takes part. Then it waits on, or gives the step up, which
    rank 1 is told in its own; and both train."""
    bps.init()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = _model()
    run: nn.Module = model
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
    if way == "wrapper":
        run = bps.parallel.DistributedDataParallel(model)
    else:
        optimizer = bps.DistributedOptimizer(
            optimizer,
            model.named_parameters(),
            op=bps.Adasum if way == "adasum" else bps.Average,
            overlap_forward=model if way == "overlap" else None,
        )
    if bps.rank() == 0:
        with interrupted():
            _backward(run)
            optimizer.step()
        if give_up and way in ("optimizer", "overlap"):  # the wrapper does it in the next forward pass, Adasum has
            optimizer.forget_gradients()
        if way == "wrapper":
            run(torch.ones(2, 4))  # while rank 1 has sent nothing: else it may have the sum
    bps.barrier("interrupted")
    if not give_up:
        if bps.rank() == 1:
            _backward(run)
        optimizer.step()
    elif bps.rank() == 1:
        with pytest.raises(bps.AbortedError, match=r"rank 0 .* gave up"):
            _backward(run)
            optimizer.step()
    for _ in range(3 if give_up else 2):
        optimizer.zero_grad()
        _backward(run)
        optimizer.step()
    if way != "wrapper":
        optimizer.finish_step()
    return _weights(model)


def _reference() -> torch.Tensor:
    """The same in one process."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        (sum(model(torch.full((2, 4), rank + 1.0)).square().sum() for rank in range(2)) / 2).backward()
        optimizer.step()
    return _weights(model)


@pytest.mark.parametrize(
    ("way", "give_up"),
    [
        ("optimizer", True),
        ("optimizer", False),
        ("overlap", True),
        ("overlap", False),
        ("wrapper", True),
        ("adasum", True),
    ],
)
def test_training(run_workers: RunWorkers, way: str, give_up: bool) -> None:
    results = run_workers(_training, way, give_up, servers=0, BYTEPS_OP_TIMEOUT="60").results
    assert torch.equal(results[0], results[1])
    if way == "adasum":
        assert not torch.equal(results[0], _weights(_model()))
        return
    torch.testing.assert_close(results[0], _reference())


def _other_threads() -> None:
    """Rank 0's thread that waits can be helped by another Python thread of its process alone."""
    bps.init()
    rank, ones = bps.rank(), torch.ones(3)
    waits: list[Callable[[], Any]] = [
        lambda: bps.push_pull(ones, name="x"),
        lambda: bps.allgather(ones, name="x"),
        lambda: bps.broadcast_object(1, 1, name="x"),
        lambda: bps.barrier("x"),
    ]
    for wait in waits:
        if rank == 0:
            waiting = threading.Event()

            def help_it(waiting: threading.Event = waiting) -> None:
                waiting.wait(60)
                bps.barrier("of the other thread")

            helper = threading.Thread(target=help_it)
            helper.start()
            waiting.set()
            wait()
            helper.join(60)
            assert not helper.is_alive()
        else:
            bps.barrier("of the other thread")
            wait()


def test_other_threads_run(run_workers: RunWorkers) -> None:
    run_workers(_other_threads, BYTEPS_OP_TIMEOUT="100")
