"""Tensors in the memory of GPUs (simulated ones, fake_cuda.py): jobs of real processes, with servers.

What no machine without a GPU can show is said in docs/gpu.md.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.completions import when_done
from byteps.torch.device_streams import DevicePart
from fake_cuda import FakeCuda, fake_gpus, gpus_of_job
from torch import nn

RunWorkers = Callable[..., Any]

SCHEDULES = ["late", "early", "random", "late,patience=40"]
STEPS = 6

# How the tensors of all workers meet: options of run_workers. Without a server the GPUs reduce among themselves.
WAYS: dict[str, dict[str, Any]] = {
    "server": {"workers": 2, "servers": 1},
    "gpus": {"workers": 2, "servers": 0},
    "gpus in order": {"workers": 3, "servers": 0, "BYTEPS_DETERMINISTIC": "1"},
}
SCHEDULES_OF_WAYS = [
    *[("server", schedule) for schedule in SCHEDULES],
    *[("gpus", schedule) for schedule in ("late", "random", "late,patience=40")],
    ("gpus in order", "random"),
]


def _expect_way(gpu: FakeCuda, way: str, before: dict[str, int]) -> None:
    """Since then the library has copied to the host and back, or never: then results came from GPU to GPU."""
    after = gpu.counts()
    for what in ("copies_to_host", "copies_to_device"):
        copied = after[what] - before[what]
        assert (copied == 0) == (WAYS[way]["servers"] == 0), f"{way}: {copied} {what}"


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 70), nn.Tanh(), nn.Linear(70, 3))


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def _clipped(model: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()


def _plain(model: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.step()


def _train(
    model: nn.Module,
    place: Callable[[torch.Tensor], torch.Tensor],
    prefix: str,
    finish: Callable[[nn.Module, Any, int], None] = _plain,
    steps: int = STEPS,
    overlap: bool = False,
    forward: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    scaler: Any = None,
    **options: Any,
) -> Any:
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        [(prefix + name, parameter) for name, parameter in model.named_parameters()],
        overlap_forward=model if overlap else None,
        **options,
    )
    bps.broadcast_parameters(model.state_dict(), 0, prefix=prefix)
    for step in range(steps):
        optimizer.zero_grad()
        with forward():
            loss = (model(place(_batch(step, bps.rank()))) ** 2).mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        finish(model, optimizer, step)
    optimizer.finish_step()
    return optimizer


# What is trained with: how a step ends, overlap_forward, compression.
KINDS: dict[str, tuple[Callable[..., None], bool, Any]] = {
    "plain": (_plain, False, bps.Compression.none),
    "overlap": (_plain, True, bps.Compression.none),
    "fp16": (_plain, False, bps.Compression.fp16),
    "clipped": (_clipped, False, bps.Compression.none),
}


def _trains(way: str) -> None:
    with gpus_of_job() as gpu:
        for name, (finish, overlap, compression) in KINDS.items():
            # Each rank begins with weights of its own.
            reference = _model(seed=bps.rank())
            start = [parameter.detach().clone() for parameter in reference.parameters()]
            model = gpu.model(reference)
            before = gpu.counts()
            _train(model, gpu.tensor, f"gpu.{name}.", finish, overlap=overlap, compression=compression)
            assert gpu.counts()["synchronisations"] == before["synchronisations"], (
                f"{name}: the host waited for the GPU"
            )
            _expect_way(gpu, way, before)
            _train(reference, lambda batch: batch, f"cpu.{name}.", finish, compression=compression)
            for mine, theirs, begin in zip(model.parameters(), reference.parameters(), start):
                assert torch.equal(gpu.read(mine), theirs.detach()), name
                assert not torch.equal(theirs, begin), "it has learned"


@pytest.mark.parametrize(("way", "schedule"), SCHEDULES_OF_WAYS)
def test_training(run_workers: RunWorkers, way: str, schedule: str) -> None:
    """The bits of training on the CPU; no wait of the host for the GPU; nothing unordered."""
    run_workers(_trains, way, **WAYS[way], **fake_gpus(schedule))


def _autocasts() -> None:
    # What PyTorch casts to, loss scaling, overlap_forward (a parameter is cast while its update is on its way), and
    # compression.
    kinds = [
        (torch.bfloat16, False, False, bps.Compression.none),
        (torch.bfloat16, False, True, bps.Compression.none),
        (torch.bfloat16, False, False, bps.Compression.bf16),
        (torch.float16, True, False, bps.Compression.none),
        (torch.float16, True, False, bps.Compression.fp16),
    ]
    with gpus_of_job() as gpu:
        for number, (dtype, scaled, overlap, compression) in enumerate(kinds):
            reference = _model(seed=bps.rank())
            start = [parameter.detach().clone() for parameter in reference.parameters()]
            seen: list[torch.dtype] = []
            reference[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))  # noqa: B023
            model = gpu.model(reference)
            # To PyTorch the simulated GPUs are CPUs, too.
            forward = functools.partial(torch.autocast, "cpu", dtype=dtype)

            def train(
                model: nn.Module,
                place: Callable[[torch.Tensor], torch.Tensor],
                prefix: str,
                overlap: bool,
                scaled: bool = scaled,
                forward: Any = forward,
                compression: Any = compression,
            ) -> None:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaled else None

                def finish(model: nn.Module, optimizer: Any, step: int) -> None:
                    if scaler is None:
                        return optimizer.step()
                    optimizer.synchronize()
                    with optimizer.skip_synchronize():
                        scaler.step(optimizer)
                    scaler.update()

                _train(
                    model,
                    place,
                    prefix,
                    finish,
                    overlap=overlap,
                    forward=forward,
                    scaler=scaler,
                    compression=compression,
                )

            waits = gpu.counts()["synchronisations"]
            train(model, gpu.tensor, f"gpu.{number}.", overlap)
            if not scaled:  # (A scaler asks whether a gradient is infinite.)
                assert gpu.counts()["synchronisations"] == waits, f"{number}: the host waited for the GPU"
            train(reference, lambda batch: batch, f"cpu.{number}.", False)
            assert seen == [dtype] * (2 * STEPS), "it was cast"
            for mine, theirs, begin in zip(model.parameters(), reference.parameters(), start):
                assert mine.dtype == torch.float32
                assert torch.equal(gpu.read(mine), theirs.detach()), (number, dtype)
                assert torch.isfinite(theirs).all()
                assert not torch.equal(theirs, begin), "it has learned"


@pytest.mark.parametrize(("way", "schedule"), [("server", "late"), ("server", "random"), ("gpus", "random")])
def test_training_under_autocast(run_workers: RunWorkers, way: str, schedule: str) -> None:
    """Likewise where PyTorch computes in 16 bits; a scaler keeps small gradients of float16."""
    run_workers(_autocasts, **WAYS[way], **fake_gpus(schedule))


def _asynchronous() -> None:
    with gpus_of_job() as gpu:
        weight = nn.Parameter(gpu.tensor(torch.full((300, 40), float(bps.rank()))))
        # A gradient, and so a change, that is not row-major.
        turned = nn.Parameter(gpu.tensor(torch.zeros(40, 300)).t())
        named = [("weight", weight), ("turned", turned)]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight, turned], lr=1.0), named)
        for step in range(11):
            if step == 10:
                bps.barrier()  # (All steps are there, and this one adds nothing.)
            optimizer.zero_grad()
            size = 0.0 if step == 10 else 1.0 + bps.rank()
            ((weight.sum() + turned.sum()) * -size).backward()
            optimizer.step()
        assert gpu.counts()["synchronisations"] == 0, "the host waited for the GPU"
        for parameter in (weight, turned):
            assert gpu.read(parameter).unique().tolist() == [10.0 * sum(range(1, bps.size() + 1))]


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_asynchronous_training(run_workers: RunWorkers, schedule: str) -> None:
    """The steps of all ranks arrive; no wait of the host for the GPU."""
    run_workers(_asynchronous, BYTEPS_ENABLE_ASYNC="1", **fake_gpus(schedule))


MADE = ("allocations", "host_allocations", "registrations", "streams", "events")


def _steady(way: str, overlap: bool) -> None:
    quiet, before = 0, None
    with gpus_of_job() as gpu:
        begin = gpu.counts()
        model = gpu.model(_model(seed=bps.rank()))
        gaps = gpu.tensor(torch.ones(8, 6))[:, 1]

        def look(model: nn.Module, optimizer: Any, step: int) -> None:
            nonlocal quiet, before
            # What makes the output of the result is marked in the stream, as each update is.
            bps.push_pull_inplace(gaps, name="gaps")
            optimizer.step()
            counts = gpu.counts()
            made = [counts[what] for what in MADE]
            quiet = quiet + 1 if made == before else 0
            before = made

        # How many operations are under way at once differs; what is made for them is used again.
        for number in range(40):
            _train(model, gpu.tensor, "steady.", look, steps=10, overlap=overlap)
            done = bps.push_pull(torch.tensor(float(quiet >= 9)), average=False, name=f"quiet.{number}")
            if done == bps.size():
                break
        assert done == bps.size(), before
        assert gpu.counts()["synchronisations"] == 0
        _expect_way(gpu, way, begin)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_steady_state_makes_nothing(run_workers: RunWorkers, way: str, overlap: bool) -> None:
    run_workers(_steady, way, overlap, **WAYS[way], **fake_gpus("late"))


def _missing_wait() -> None:
    def wrong(self: DevicePart, request: Any, output: torch.Tensor, timeout: float | None) -> None:
        request.wait_on_stream(elsewhere, timeout)

    right = DevicePart.wait
    with gpus_of_job(races=True) as gpu:
        elsewhere = gpu.new_stream()
        DevicePart.wait = wrong  # type: ignore[method-assign]
        x = gpu.tensor(torch.ones(1000))
        for _ in range(10):
            x.copy_(bps.push_pull(x, average=False, name="x"))
        DevicePart.wait = right  # type: ignore[method-assign]


def _missing_order() -> None:
    with gpus_of_job(races=True) as gpu:
        elsewhere = gpu.new_stream()
        x = gpu.tensor(torch.ones(1000))
        with gpu.stream(elsewhere):
            handle = bps.push_pull_async_inplace(x, name="x")
        bps.synchronize(handle)


# The host counts as having waited where it has seen an event; with patience the next kernel comes before that.
@pytest.mark.parametrize("schedule", ["late,patience=300"])
@pytest.mark.parametrize("body", [_missing_wait, _missing_order])
def test_what_nothing_orders_is_reported(run_workers: RunWorkers, body: Callable[[], None], schedule: str) -> None:
    """The binding without one of its waits, and a program without one: that the other tests find nothing means much."""
    run_workers(body, **fake_gpus(schedule))


def _operations(way: str) -> None:
    with gpus_of_job() as gpu:
        rank, size = bps.rank(), bps.size()
        before = gpu.counts()
        values = torch.arange(24.0).view(2, 3, 4) + rank
        total = sum(torch.arange(24.0).view(2, 3, 4) + other for other in range(size))
        x = gpu.tensor(values)
        out = bps.push_pull(x, average=False, name="out")
        new = bps.allreduce(x * 2, op=bps.Sum, name="new")
        turned = bps.push_pull(x.permute(2, 0, 1), average=False, name="turned")
        part = x.clone()
        bps.push_pull_inplace(part[:, 1], average=False, name="part")
        sent = bps.broadcast(x, 1, name="sent")
        bps.broadcast_(x[:, 2], 0, name="column")
        nothing = bps.push_pull(gpu.tensor(torch.empty(0, 5)), name="nothing")
        scalar = bps.push_pull(gpu.tensor(torch.tensor(float(rank))), average=False, name="scalar")
        leaf = nn.Parameter(gpu.tensor(values))
        bps.push_pull(leaf, average=False, name="leaf").sum().backward()
        _expect_way(gpu, way, before)
        # NCCL has not these: the GPUs of a host leave them to its memory.
        wide = gpu.tensor(values.to(torch.int64))
        bps.allreduce_(wide, op=bps.Average, name="wide")
        half = bps.push_pull(gpu.tensor(values.to(torch.bfloat16)), op=bps.Max, name="half")
        results = {
            "out": (out, total),
            "new": (new, total * 2),
            "turned": (turned, total.permute(2, 0, 1)),
            "wide": (wide, total.to(torch.int64) // size),
            "half": (half, (torch.arange(24.0).view(2, 3, 4) + size - 1).to(torch.bfloat16)),
            "sent": (sent, torch.arange(24.0).view(2, 3, 4) + 1),
            "scalar": (scalar, torch.tensor(float(sum(range(size))))),
            "gradient": (leaf.grad, torch.full((2, 3, 4), float(size))),
        }
        assert nothing.shape == (0, 5)
        assert gpu.counts()["synchronisations"] == 0
        for name, (found, expected) in results.items():
            assert torch.equal(gpu.read(found), expected), (name, gpu.read(found), expected)
        assert torch.equal(gpu.read(part)[:, 1], total[:, 1])
        assert torch.equal(gpu.read(part)[:, 0], values[:, 0])
        assert torch.equal(gpu.read(x)[:, 2], values[:, 2] - rank)


@pytest.mark.parametrize(("way", "schedule"), SCHEDULES_OF_WAYS)
def test_operations(run_workers: RunWorkers, way: str, schedule: str) -> None:
    run_workers(_operations, way, **WAYS[way], **fake_gpus(schedule))


def _collectives() -> None:
    with gpus_of_job() as gpu:
        rank, size = bps.rank(), bps.size()
        pair = bps.add_process_set([0, 1])
        before = 0

        def values(of: int, rows: int) -> torch.Tensor:
            return torch.arange(float(rows * 3)).view(rows, 3) + 100 * of

        def total(ranks: int, rows: int) -> torch.Tensor:
            return torch.stack([values(other, rows) for other in range(ranks)]).sum(0)

        for rows in (1, 5000):
            all_rows = rows * size
            x = gpu.tensor(values(rank, rows * (rank + 1)))
            same = gpu.tensor(values(rank, all_rows))
            turned = gpu.tensor(values(rank, all_rows).t()).t()  # not row-major
            wide = gpu.tensor(values(rank, all_rows))
            mine = slice(rows * rank, rows * (rank + 1))
            results = [
                (
                    bps.allgather(x, name=f"gathered.{rows}"),
                    torch.cat([values(other, rows * (other + 1)) for other in range(size)]),
                ),
                (bps.reducescatter(same, op=bps.Sum, name=f"scattered.{rows}"), total(size, all_rows)[mine]),
                (
                    bps.allgather(turned, name=f"turned.{rows}"),
                    torch.cat([values(other, all_rows) for other in range(size)]),
                ),
                (
                    bps.alltoall(same, name=f"exchanged.{rows}"),
                    torch.cat([values(other, all_rows)[mine] for other in range(size)]),
                ),
                (
                    bps.allreduce(same, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0, name=f"scaled.{rows}"),
                    total(size, all_rows) * 2,
                ),
            ]
            if rank < 2:
                results += [
                    (
                        bps.allreduce(same, op=bps.Sum, process_set=pair, name=f"set.{rows}"),
                        total(2, all_rows),
                    ),
                    (bps.broadcast(same, 1, process_set=pair, name=f"sent.{rows}"), values(1, all_rows)),
                ]
                # In place, of a tensor with gaps.
                handle = bps.allreduce_async_(wide[:, 1], op=bps.Sum, process_set=pair, name=f"column.{rows}")
                assert bps.synchronize(handle).shape == (all_rows,)
            assert gpu.counts()["synchronisations"] == before, "the host waited for the GPU"
            for number, (found, expected) in enumerate(results):
                assert torch.equal(gpu.read(found), expected), (rows, number, gpu.read(found), expected)
            if rank < 2:
                assert torch.equal(gpu.read(wide)[:, 1], total(2, all_rows)[:, 1])
            assert torch.equal(gpu.read(wide)[:, 0], values(rank, all_rows)[:, 0])
            before = gpu.counts()["synchronisations"]


@pytest.mark.parametrize(("servers", "schedule"), [*[(1, schedule) for schedule in SCHEDULES], (0, "random")])
def test_collectives(run_workers: RunWorkers, servers: int, schedule: str) -> None:
    run_workers(_collectives, workers=3, servers=servers, **fake_gpus(schedule))


def _streams() -> None:
    with gpus_of_job() as gpu:
        side, other = gpu.new_stream(), gpu.new_stream()
        snapshots = []
        for number in range(20):
            # Made on one stream, reduced on it, used on another, and freed at once: its memory is the next one's.
            with gpu.stream(side):
                handle = bps.push_pull_async(gpu.tensor(torch.full((5000,), float(number))), average=False, name="x")
            with gpu.stream(other):
                snapshots.append(gpu.later(bps.synchronize(handle)))
            del handle
        # A result with gaps is copied to its place on the first stream that waits; the next one waits for that copy.
        columns = []
        for number in range(20):
            wide = gpu.tensor(torch.full((20_000, 2), float(number)))
            gpu.order(0, side)
            with gpu.stream(side):
                handle = bps.allreduce_async_(wide[:, 1], op=bps.Sum, name="column")
                bps.synchronize(handle)
            with gpu.stream(other):
                columns.append(gpu.later(bps.synchronize(handle)))
        # Where the first that waits is another stream, what is copied from there is in use before it is the next one's.
        kept = []  # (Memory that is used again would order the streams.)
        for number in range(20):
            wide = gpu.tensor(torch.full((20_000, 2), float(number)))
            kept.append(wide)
            gpu.order(0, side)
            with gpu.stream(side):
                handle = bps.push_pull_async_inplace(wide[:, 1], average=False, name="elsewhere")
            with gpu.stream(other):
                columns.append(gpu.later(bps.synchronize(handle)))
            del handle
            with gpu.stream(side):
                gpu.tensor(torch.zeros(20_000))
        # Dropped: it goes on, and its memory is not given out until it has ended.
        for number in range(20):
            bps.push_pull_async(gpu.tensor(torch.full((7000,), float(number))), average=False, name=f"dropped.{number}")
            gpu.tensor(torch.zeros(7000))
        # An input whose result comes on the host is held, too.
        gathered = []
        for number in range(10):
            handle = bps.allgather_async(gpu.tensor(torch.full((6000,), float(number))), name=f"gathered.{number}")
            gpu.tensor(torch.zeros(6000))
            gathered.append(handle)
        gathered = [gpu.later(bps.synchronize(handle)) for handle in gathered]
        gc.collect()
        for stream in (side, other):
            with gpu.stream(stream):
                gpu.synchronize(0)
        for number, found in enumerate(snapshots):
            assert torch.equal(found[0], torch.full((5000,), float(number * bps.size())))
        gpu.synchronize(0)
        for number, found in enumerate(gathered):
            assert torch.equal(found[0], torch.full((6000 * bps.size(),), float(number)))
        for number, found in enumerate(columns):
            assert torch.equal(found[0], torch.full((20_000,), float(number % 20 * bps.size())))


@pytest.mark.parametrize(("way", "schedule"), SCHEDULES_OF_WAYS)
def test_streams_and_freed_memory(run_workers: RunWorkers, way: str, schedule: str) -> None:
    run_workers(_streams, **WAYS[way], **fake_gpus(schedule))


def _second_gpu_and_thread() -> None:
    with gpus_of_job() as gpu:
        found: list[Any] = []

        def work() -> None:
            # Another thread has streams of its own, as autograd's has.
            stream = gpu.new_stream(1)
            with gpu.stream(stream, 1):
                x = gpu.tensor(torch.full((3000,), 2.0), index=1)
                bps.push_pull_inplace(x, average=False, name="second")
                found.append(gpu.read(x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert torch.equal(found[0], torch.full((3000,), 2.0 * bps.size()))


def test_another_gpu_on_another_thread(run_workers: RunWorkers) -> None:
    run_workers(_second_gpu_and_thread, **fake_gpus("late"))


def _callbacks() -> None:
    with gpus_of_job() as gpu:
        x = gpu.tensor(torch.full((3000,), 2.0))
        ended: list[Any] = []
        told = threading.Event()

        def done(output: Any, error: BaseException | None) -> None:
            ended.append((error, None if error else gpu.peek(output)))
            told.set()

        # In place, and behind a copy to a place with gaps.
        for tensor in (x, gpu.tensor(torch.full((3000, 2), 2.0))[:, 1]):
            told.clear()
            when_done(bps.push_pull_async_inplace(tensor, average=False, name="x"), done)
            assert told.wait(60)
            error, found = ended.pop()
            assert error is None
            assert torch.equal(found, torch.full((3000,), 2.0 * bps.size())), "told before the result was there"


@pytest.mark.parametrize("way", WAYS)
def test_a_completion_comes_when_the_result_is_there(run_workers: RunWorkers, way: str) -> None:
    run_workers(_callbacks, **WAYS[way], **fake_gpus("late"))


def _beside_a_cpu() -> None:
    with gpus_of_job() as gpu:
        on_gpu = bps.rank() == 0
        values = torch.arange(5000.0) + bps.rank()
        x = gpu.tensor(values) if on_gpu else values.clone()
        bps.push_pull_inplace(x, average=False, name="x")
        found = gpu.read(x) if on_gpu else x
        assert torch.equal(found, sum(torch.arange(5000.0) + rank for rank in range(bps.size())))


@pytest.mark.parametrize("servers", [1, 0])
def test_beside_a_worker_without_a_gpu(run_workers: RunWorkers, servers: int) -> None:
    run_workers(_beside_a_cpu, servers=servers, **fake_gpus("late"))


def _scaler() -> None:
    with gpus_of_job() as gpu:
        model = gpu.model(_model(seed=1))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        start = [gpu.read(parameter) for parameter in model.parameters()]
        for step in range(3):
            optimizer.zero_grad()
            loss = (model(gpu.tensor(_batch(step, bps.rank()))) ** 2).mean()
            if step == 1 and bps.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        # The second step was left out on both, since one had an infinite gradient.
        assert scaler.get_scale() == 2.0**9
        mine = [gpu.read(parameter) for parameter in model.parameters()]
        assert all(torch.isfinite(weight).all() for weight in mine)
        assert not any(torch.equal(weight, begin) for weight, begin in zip(mine, start))
        for number, weight in enumerate(mine):
            assert torch.equal(bps.broadcast(weight, 0, name=f"check.{number}"), weight)


@pytest.mark.parametrize("servers", [1, 0])
def test_a_grad_scaler(run_workers: RunWorkers, servers: int) -> None:
    run_workers(_scaler, servers=servers, **fake_gpus("late"))


def _errors() -> None:
    with gpus_of_job() as gpu:
        x, y = gpu.tensor(torch.ones(300)), gpu.tensor(torch.ones(300), index=1)
        with pytest.raises(ValueError, match="one operation is of one GPU"):
            bps.push_pull_async_into(x, y, name="x")
        with pytest.raises(ValueError, match="one operation is of one GPU"):
            bps.push_pull_async_into(x, torch.empty(300), name="x")
        side, second = gpu.new_stream(), gpu.new_stream(1)
        with gpu.stream(second), pytest.raises(bps.InvalidArgumentError, match="stream is of GPU 1"):
            bps.push_pull(x, name="x")
        handle = bps.push_pull_async_inplace(x, average=False, name="x")
        gpu.capture(side, True)
        with gpu.stream(side), pytest.raises(bps.FailedPreconditionError, match="captured into a CUDA graph"):
            bps.synchronize(handle)
        gpu.capture(side, False)
        bps.synchronize(handle)
        assert torch.equal(gpu.read(x), torch.full((300,), 2.0))
        gpu.capture(side, True)
        # The tensors are made outside.
        with gpu.stream(side), pytest.raises(bps.FailedPreconditionError, match="captured into a CUDA graph"):
            bps.push_pull_inplace(x, name="x")
        gpu.capture(side, False)
        bps.push_pull_inplace(x, average=False, name="x")
        assert torch.equal(gpu.read(x), torch.full((300,), 4.0))


def test_what_callers_get_wrong(run_workers: RunWorkers) -> None:
    run_workers(_errors, **fake_gpus("late"))


def _lost() -> None:
    gpu = FakeCuda.install()
    bps.init()
    x = gpu.tensor(torch.ones(3000))
    bps.push_pull_inplace(x, name="x")
    gpu.lose(0)
    with pytest.raises(bps.BytePSError, match=r"GPU 0.*its context is lost"):
        bps.push_pull_inplace(x, name="x")
    # What the host has goes on.
    assert bps.push_pull(torch.ones(1), average=False, name="host").item() == bps.size()
    bps.shutdown()


def test_a_lost_gpu_is_an_error_of_the_call(run_workers: RunWorkers) -> None:
    """In the middle of a round: tests/e2e/device_test.cc."""
    run_workers(_lost, **fake_gpus("late"))


def _no_plugin() -> None:
    gpu = FakeCuda(fake_gpus("late")["BYTEPS_DEVICE"])
    FakeCuda.instance = gpu
    import byteps.torch.device_streams as device_streams

    device_streams.STREAMS = gpu
    bps.init()
    with pytest.raises(bps.NotFoundError, match='device "absent"'):
        bps.push_pull(gpu.tensor(torch.ones(3)), name="x")
    assert bps.push_pull(torch.ones(1), average=False, name="host").item() == bps.size()
    bps.shutdown()
    gpu.close()


def test_without_a_plugin(run_workers: RunWorkers) -> None:
    run_workers(_no_plugin, **{**fake_gpus("late"), "BYTEPS_DEVICE": "absent"})
