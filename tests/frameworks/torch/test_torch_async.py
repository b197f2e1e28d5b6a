"""Asynchronous training: digits with one slow worker, the bound of staleness, what ranks get, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from torch import nn

RunWorkers = Callable[..., Any]


def _sums() -> list[float]:
    """Each rank takes 10 steps of its own size; in the end every rank has all of them."""
    hvd.init()
    rank = hvd.rank()
    weight = nn.Parameter(torch.full((300, 40), float(rank)))  # the servers begin with rank 0's
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    seen = 0.0
    for _ in range(10):
        optimizer.zero_grad()
        (weight.sum() * -(rank + 1)).backward()
        optimizer.step()
        low, high = weight.min().item(), weight.max().item()
        assert seen + rank + 1 <= low <= high <= 10 * sum(range(1, hvd.size() + 1))
        seen = low
    hvd.barrier()
    optimizer.zero_grad()
    weight.mul(0).sum().backward()
    optimizer.step()
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size()))), "still of all"
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        weight.sum().backward()
        weight.sum().backward()
    for options, text in (
        ({"op": hvd.Max}, "op=Max"),
        ({"op": hvd.Adasum}, "op=Adasum"),
        ({"compression": hvd.Compression.fp16}, "compression"),
        ({"groups": 1}, "groups"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], **options)
    return weight.detach().flatten().unique().tolist()


@pytest.mark.parametrize("workers", [2, 3])
def test_everybody_gets_all_steps(run_workers: RunWorkers, workers: int) -> None:
    job = run_workers(_sums, workers=workers, servers=2, BYTEPS_ENABLE_ASYNC="1")
    assert job.results == [[10.0 * sum(range(1, workers + 1))]] * workers


def _two_sessions() -> float:
    """The servers of the second session have nothing until the optimizer gives it to them."""
    hvd.init()
    weight = nn.Parameter(torch.full((300,), 5.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    for session in range(2):
        if session != 0:
            hvd.shutdown()
            optimizer.zero_grad()
            weight.sum().backward()
            with pytest.raises(ValueError, match="init"):
                optimizer.step()
            hvd.init()
        for size in (1.0, 0.0):
            optimizer.zero_grad()
            (weight.sum() * -size).backward()
            optimizer.step()
            hvd.barrier()
    return weight.max().item()


def test_a_second_session_goes_on(run_workers: RunWorkers) -> None:
    assert run_workers(_two_sessions, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [9.0] * 2


def _step(optimizer: Any, weight: nn.Parameter, size: float) -> None:
    optimizer.zero_grad()
    (weight.sum() * -size).backward()
    optimizer.step()


def _two_optimizers() -> list[float]:
    """The second one of the same parameters begins with what they are, and not with what the servers have besides."""
    hvd.init()
    weight = nn.Parameter(torch.full((30,), 5.0))
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
        _step(optimizer, weight, 1.0)
        hvd.barrier()
        _step(optimizer, weight, 0.0)
    return weight.detach().unique().tolist()


def test_a_second_optimizer_begins_anew(run_workers: RunWorkers) -> None:
    assert run_workers(_two_optimizers, workers=2, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [[9.0]] * 2


def _clipping() -> list[float]:
    """As docs/migrate.md says: synchronize(), clip, step() inside skip_synchronize()."""
    hvd.init()
    weight = nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="gradient_predivide_factor does not go with asynchronous training"):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), gradient_predivide_factor=2.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    (weight.sum() * -8).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_value_([weight], 2.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    hvd.barrier()
    _step(optimizer, weight, 0.0)
    return weight.detach().unique().tolist()


def test_gradients_are_clipped(run_workers: RunWorkers) -> None:
    assert run_workers(_clipping, workers=2, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [[4.0]] * 2


def _in_another_order() -> list[list[float]]:
    """Two optimizers; each rank begins with another one, so the first steps wait for each other in threads."""
    hvd.init()
    rank = hvd.rank()
    weights = [nn.Parameter(torch.full((30,), 5.0)), nn.Parameter(torch.full((7,), 50.0))]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [(f"weight{number}", weight)])
        for number, weight in enumerate(weights)
    ]
    order = [0, 1] if rank == 0 else [1, 0]
    threads = [threading.Thread(target=_step, args=(optimizers[each], weights[each], 1.0)) for each in order]
    threads[0].start()
    deadline = time.monotonic() + 60
    while not optimizers[order[0]]._beginning.prefix:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    threads[1].start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    hvd.barrier()
    for optimizer, weight in zip(optimizers, weights):
        _step(optimizer, weight, 0.0)
    return [weight.detach().unique().tolist() for weight in weights]


def test_in_another_order(run_workers: RunWorkers) -> None:
    results = run_workers(_in_another_order, BYTEPS_ENABLE_ASYNC="1", BYTEPS_OP_TIMEOUT="60").results
    assert results == [[[7.0], [52.0]]] * 2


def _interrupted_beginning() -> list[float]:
    """The servers have the parameters once, however often a rank begins to wait for the others."""
    import byteps.torch.async_optimizer as module

    hvd.init()
    weight = nn.Parameter(torch.full((30,), 5.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    if hvd.rank() == 0:
        wait = module.barrier

        def interrupted(name: str) -> None:
            module.barrier = wait
            raise KeyboardInterrupt(name)

        module.barrier = interrupted
        with pytest.raises(KeyboardInterrupt, match="AsyncParam"):
            _step(optimizer, weight, 1.0)
    _step(optimizer, weight, 1.0)
    hvd.barrier()
    _step(optimizer, weight, 0.0)
    values = weight.detach().unique().tolist()

    del optimizer  # it would count the passes, too
    second = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    send = module.add_to_servers

    def failing(*_: Any) -> None:
        module.add_to_servers = send
        raise KeyboardInterrupt

    module.add_to_servers = failing
    with pytest.raises(KeyboardInterrupt):
        _step(second, weight, 1.0)
    with pytest.raises(hvd.FailedPreconditionError, match=r"kept Gradient\.weight and 0 other parameters from the ser"):
        _step(second, weight, 1.0)
    return values


def test_an_interrupt_at_the_beginning(run_workers: RunWorkers) -> None:
    assert run_workers(_interrupted_beginning, workers=2, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [[7.0]] * 2


def _digits(steps: int) -> float:
    """Trains `steps` steps, rank 1 a quarter of them, each four times as long; returns the accuracy."""
    from sklearn.datasets import load_digits

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    mine = train[rank::size]
    hvd.barrier()
    for _ in range(steps // 4 if rank == 1 else steps):
        begun = time.monotonic()
        batch = mine[torch.randint(len(mine), (32,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if rank == 1:
            time.sleep(3 * (time.monotonic() - begun))
    hvd.barrier()
    with torch.no_grad():
        return (model(images[test]).argmax(1) == labels[test]).float().mean().item()


def test_digits_with_a_slow_worker(run_workers: RunWorkers) -> None:
    """The numbers of steps differ: a step that waited for all ranks would never end."""
    pytest.importorskip("sklearn")
    results = run_workers(_digits, 1000, workers=3, servers=1, BYTEPS_ENABLE_ASYNC="1").results
    assert all(accuracy > 0.93 for accuracy in results), results


def _bounded(bound: int) -> tuple[float, bool]:
    """Rank 1 stands still after three steps until rank 0 has been seen to stand still, too."""
    hvd.init()
    weight = nn.Parameter(torch.zeros(5000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])

    def step() -> None:
        optimizer.zero_grad()
        (-weight.sum()).backward()
        optimizer.step()

    for _ in range(3):
        step()
    waited = False
    if hvd.rank() == 0:
        for _ in range(bound):
            step()
        ahead = threading.Thread(target=step)
        ahead.start()
        ahead.join(1.0)
        waited = ahead.is_alive()
        hvd.barrier()
        ahead.join()
    else:
        hvd.barrier()
        step()
    return weight[0].item(), waited


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_holds(run_workers: RunWorkers, bound: int) -> None:
    job = run_workers(_bounded, bound, BYTEPS_ENABLE_ASYNC="1", BYTEPS_STALENESS=str(bound))
    assert job.results == [(8.0 + bound, True), (8.0 + bound, False)]


def _dies() -> str:
    import os

    hvd.init()
    weight = nn.Parameter(torch.zeros(10))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    with pytest.raises(hvd.UnavailableError) as caught:
        for number in range(1_000_000):
            if hvd.rank() == 1 and number == 3:
                os._exit(3)
            weight.sum().backward()
            optimizer.step()
    print(f"heard: {caught.value}", flush=True)
    raise caught.value


def test_a_death_ends_the_job(run_workers: RunWorkers) -> None:
    job = run_workers(_dies, check=False, BYTEPS_ENABLE_ASYNC="1")
    assert "heard: " in job.output and "rank 1" in job.output, job.output


def test_what_averages_gradients_is_refused(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from byteps.misc import imagenet18
    from byteps.torch.parallel import DistributedDataParallel

    model = nn.Linear(2, 2)
    pair = nn.Parameter(torch.zeros(2).half()), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([pair[1]], lr=1.0)
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    with pytest.raises(hvd.UnimplementedError, match="DistributedDataParallel has no asynchronous"):
        DistributedDataParallel(model)
    with pytest.raises(hvd.UnimplementedError, match="comm_hook has no asynchronous"):
        hvd.comm_hook(None, None)
    with pytest.raises(hvd.UnimplementedError, match="half=True has no asynchronous"):
        imagenet18.DistributedOptimizer(
            optimizer, [("one", pair[1])], half=True, fp16_params=[pair[0]], fp32_params=[pair[1]]
        )
