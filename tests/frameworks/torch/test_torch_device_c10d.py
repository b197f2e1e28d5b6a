"""The backend "byteps" of torch.distributed on tensors in the memory of GPUs (simulated ones, fake_cuda.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from fake_cuda import FakeCuda, fake_gpus, gpus_of_job
from process_group import begin, end

RunWorkers = Callable[..., Any]


def _values(rank: int, count: int) -> torch.Tensor:
    return torch.arange(float(count)) + 1000 * rank


def _collectives(gpu: FakeCuda) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    waits = gpu.counts()["synchronisations"]
    pair = dist.new_group([0, 1])
    results: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def keep(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        results.append((what, found * 1, expected))

    def room(*shape: int) -> torch.Tensor:
        return gpu.tensor(torch.full(shape, -1.0))

    for count in (2, 5000):
        whole = size * count
        mine, all_of = _values(rank, whole), [_values(other, whole) for other in range(size)]
        total, part = torch.stack(all_of).sum(0), slice(rank * count, (rank + 1) * count)
        x = gpu.tensor(mine)
        dist.all_reduce(x)
        keep("all_reduce", x, total)
        x = gpu.tensor(mine)
        if rank < 2:
            dist.all_reduce(x, op=dist.ReduceOp.MAX, group=pair)
            keep("all_reduce of two", x, all_of[1])
        tensors = [gpu.tensor(mine), gpu.tensor(mine[:3])]
        with dist._coalescing_manager(async_ops=True) as together:
            for one in tensors:
                dist.all_reduce(one)
        together.wait()
        keep("coalesced", tensors[0], total)
        x = gpu.tensor(mine)
        dist.reduce(x, dst=1)
        keep("reduce", x, total if rank == 1 else mine)
        x = gpu.tensor(mine)
        dist.broadcast(x, src=size - 1)
        keep("broadcast", x, all_of[-1])
        out = room(whole * size)
        dist.all_gather_into_tensor(out, gpu.tensor(mine))
        keep("all_gather_into_tensor", out, torch.cat(all_of))
        # A part of the buffer into the whole, as FSDP does.
        out = room(whole * size)
        own = out[rank * whole : (rank + 1) * whole]
        own.copy_(mine)
        dist.all_gather_into_tensor(out, own)
        keep("all_gather_into_tensor in place", out, torch.cat(all_of))
        outs = [room(other + 1) for other in range(size)]
        copies = gpu.counts()["copies_to_device"]
        dist.all_gather(outs, gpu.tensor(mine[: rank + 1]))
        assert gpu.counts()["copies_to_device"] > copies, "the list was filled through memory of the host"
        for other, one in enumerate(outs):
            keep(f"all_gather.{other}", one, all_of[other][: other + 1])
        out = room(count)
        dist.reduce_scatter_tensor(out, gpu.tensor(mine))
        keep("reduce_scatter_tensor", out, total[part])
        wide = room(count, 2)
        dist.reduce_scatter(wide[:, 1], [gpu.tensor(one) for one in mine.split(count)])
        keep("reduce_scatter", wide[:, 1], total[part])
        keep("beside reduce_scatter", wide[:, 0], torch.full((count,), -1.0))
        out = room(count)
        dist.scatter(out, [gpu.tensor(one) for one in mine.split(count)] if rank == 1 else None, src=1)
        keep("scatter", out, all_of[1][part])
        outs = [room(whole) for _ in range(size)] if rank == 0 else []
        dist.gather(gpu.tensor(mine), outs or None, dst=0)
        for other, one in enumerate(outs):
            keep(f"gather.{other}", one, all_of[other])
        out = room(whole)
        dist.all_to_all_single(out, gpu.tensor(mine))
        keep("all_to_all_single", out, torch.cat([one[part] for one in all_of]))
        # Rows for rank 0 alone, and none for the others.
        out = room(whole * size if rank == 0 else 0)
        splits = [whole if other == 0 else 0 for other in range(size)]
        dist.all_to_all_single(out, gpu.tensor(mine), [whole] * size if rank == 0 else [0] * size, splits)
        keep("rows for one", out, torch.cat(all_of) if rank == 0 else torch.empty(0))
        outs = [room(count) for _ in range(size)]
        dist.all_to_all(outs, [gpu.tensor(one) for one in mine.split(count)])
        for other, one in enumerate(outs):
            keep(f"all_to_all.{other}", one, all_of[other][part])
        following, before = (rank + 1) % size, (rank - 1) % size
        out = room(whole)
        works = [dist.isend(gpu.tensor(mine), following), dist.irecv(out, before)]
        for work in works:
            work.wait()
        keep("irecv", out, all_of[before])
    assert gpu.counts()["synchronisations"] == waits, "the host waited for the GPU"
    for what, found, expected in results:
        assert torch.equal(gpu.read(found), expected), (what, gpu.read(found), expected)


def _works(gpu: FakeCuda) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    waits = gpu.counts()["synchronisations"]
    side, other = gpu.new_stream(), gpu.new_stream()
    snapshots = []
    for number in range(20):
        # The stream that waits is the one that is current at wait(); memory is freed at once.
        with gpu.stream(side):
            x = gpu.tensor(torch.full((4000,), float(number)))
            out = gpu.tensor(torch.zeros(4000 * size))
            outs = [gpu.tensor(torch.zeros(4000)) for _ in range(size)]
            works = [dist.all_gather_into_tensor(out, x, async_op=True), dist.all_gather(outs, x, async_op=True)]
            work = dist.all_reduce(x * 1, async_op=True)
            works[1].wait()
        with gpu.stream(other):
            for one in works:
                one.wait()
                assert one.is_completed() and one.is_success()
            snapshots += [gpu.later(out), gpu.later(outs[1])]
            del x, out, outs, works
        work.wait()
    assert gpu.counts()["synchronisations"] == waits
    # wait() returns though the stream does not get there.
    x = gpu.tensor(torch.full((4000,), 1.0 + rank))
    out = gpu.tensor(torch.zeros(4000 * size))
    works = [dist.all_gather_into_tensor(out, x, async_op=True), dist.all_reduce(x * 1, async_op=True)]
    release = gpu.hold(other)
    with gpu.stream(other):
        for work in works:
            work.wait()
        held = gpu.later(out)
    assert not held
    release()
    # A future's tensors are there for every stream.
    x = gpu.tensor(torch.full((4000,), 1.0 + rank))
    outs = [gpu.tensor(torch.zeros(4000)) for _ in range(size)]
    told = threading.Event()
    found: list[torch.Tensor] = []

    def look(future: Any) -> None:
        found.extend(gpu.peek(one) for one in future.value())
        told.set()

    dist.all_gather(outs, x, async_op=True).get_future().then(look)
    assert told.wait(60)
    assert [one[0].item() for one in found] == [1.0 + other for other in range(size)]
    with gpu.stream(other):
        gpu.synchronize(0)
    for number in range(20):
        assert torch.equal(snapshots[2 * number][0], torch.full((4000 * size,), float(number)))
        assert torch.equal(snapshots[2 * number + 1][0], torch.full((4000,), float(number)))
    # What callers get wrong.
    with pytest.raises(ValueError, match="one operation is of one GPU"):
        dist.all_gather_into_tensor(torch.empty(4000 * size), x)
    with pytest.raises(ValueError, match="one operation is of one GPU"):
        dist.all_gather_into_tensor(gpu.tensor(torch.zeros(4000 * size), index=1), x)
    gpu.capture(side, True)
    with gpu.stream(side), pytest.raises(RuntimeError, match="captured into a CUDA graph"):
        dist.all_reduce(x)
    gpu.capture(side, False)


def _job() -> None:
    with gpus_of_job() as gpu:
        begin()
        _collectives(gpu)
        _works(gpu)
        end()


@pytest.mark.parametrize(("servers", "schedule"), [(1, "late"), (1, "random"), (0, "random")])
def test_collectives_streams_and_futures(run_workers: RunWorkers, servers: int, schedule: str) -> None:
    """Without a server the GPUs reduce among themselves."""
    run_workers(_job, workers=3, servers=servers, **fake_gpus(schedule))
