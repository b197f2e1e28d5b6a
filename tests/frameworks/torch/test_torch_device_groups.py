"""Groups of operations, messages and sparse tensors in the memory of GPUs (simulated ones, fake_cuda.py): jobs of real
processes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from fake_cuda import FakeCuda, fake_gpus, gpus_of_job
from torch import nn

RunWorkers = Callable[..., Any]


def _values(rank: int, count: int, seed: int = 0) -> torch.Tensor:
    # Small whole numbers: every order of sums has their bits.
    return torch.randint(-50, 50, (count, 3), generator=torch.Generator().manual_seed(7 * seed + rank)).float()


def _sum(count: int, seed: int = 0) -> torch.Tensor:
    return torch.stack([_values(rank, count, seed) for rank in range(bps.size())]).sum(0)


def _same(gpu: FakeCuda, found: torch.Tensor, expected: torch.Tensor) -> bool:
    there = gpu.read(found) if gpu.is_device(found) else found
    return torch.equal(there, expected)


def _groups() -> None:
    with gpus_of_job() as gpu:
        rank, size = bps.rank(), bps.size()
        pair = bps.add_process_set([0, 1])
        seen: list[tuple[str, Any, torch.Tensor]] = []
        for count in (1, 6000):
            results: list[tuple[str, Any, torch.Tensor]] = []
            x = _values(rank, count * size)
            total = _sum(count * size)
            mine = slice(count * rank, count * (rank + 1))
            on_gpu, wide = gpu.tensor(x), gpu.tensor(x)
            # Of both GPUs, of the host, with gaps, without elements, scaled, in another dtype.
            mixed = [on_gpu, gpu.tensor(x, index=1), x.clone(), wide[:, 1], gpu.tensor(torch.empty(0, 3))]
            found = bps.grouped_allreduce_(mixed, op=bps.Sum, name=f"mixed.{count}")
            assert all(one is given for one, given in zip(found, mixed)) and mixed[4].shape == (0, 3)
            results += [(f"mixed.{at}", mixed[at], total) for at in range(3)]
            results += [("gaps", mixed[3], total[:, 1]), ("beside the gaps", wide[:, 0], x[:, 0])]
            given = [gpu.tensor(x.to(torch.int32)), gpu.tensor(x.to(torch.bfloat16))]
            found = bps.grouped_allreduce(given, op=bps.Average, name=f"average.{count}")
            results.append(("whole numbers", found[0], total.to(torch.int32).div(size, rounding_mode="trunc")))
            assert found[1].dtype == torch.bfloat16
            options = {"op": bps.Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}
            found = bps.grouped_allreduce([gpu.tensor(x), x], name=f"scaled.{count}", **options)
            results += [(f"scaled.{at}", one, total * 2) for at, one in enumerate(found)]
            gathered, alone = bps.grouped_allgather([gpu.tensor(x[: rank + 1]), gpu.tensor(x)], name=f"rows.{count}")
            expected = torch.cat([_values(other, count * size)[: other + 1] for other in range(size)])
            results.append(("gathered", gathered, expected))
            results.append(("all", alone, torch.cat([_values(other, count * size) for other in range(size)])))
            scattered = bps.grouped_reducescatter([gpu.tensor(x), x], op=bps.Sum, name=f"scattered.{count}")
            results += [(f"scattered.{at}", one, total[mine]) for at, one in enumerate(scattered)]
            if rank < 2:
                both = _values(0, count * size) + _values(1, count * size)
                found = bps.grouped_allreduce([gpu.tensor(x)] * 2, op=bps.Sum, process_set=pair, name=f"of two.{count}")
                results += [(f"of two.{at}", one, both) for at, one in enumerate(found)]
            leaves = [nn.Parameter(gpu.tensor(x)), nn.Parameter(gpu.tensor(x))]
            first, second = bps.grouped_allreduce(leaves, op=bps.Sum, name=f"leaves.{count}")
            (first.sum() + 2 * second.sum()).backward()
            results += [
                (f"gradient.{at}", one.grad, torch.full_like(x, (1 + at) * size)) for at, one in enumerate(leaves)
            ]
            # Of the host alone.
            found = bps.grouped_allreduce([x, x], op=bps.Sum, name=f"host.{count}")
            results += [(f"host.{at}", one, total) for at, one in enumerate(found)]
            # Kernels read them: what these do not wait for is a race.
            seen += [(what, one * 1, expected) for what, one, expected in results]
        assert gpu.counts()["synchronisations"] == 0, "the host waited for the GPU"
        for what, one, expected in seen:
            assert _same(gpu, one, expected), (what, one, expected)


@pytest.mark.parametrize("servers", [1, 0])
def test_groups(run_workers: RunWorkers, servers: int) -> None:
    """Without a server the GPUs reduce among themselves."""
    run_workers(_groups, workers=3, servers=servers, **fake_gpus("random"))


def _streams_of_groups(gpu: FakeCuda) -> None:
    before = gpu.counts()["synchronisations"]
    side, other, second = gpu.new_stream(), gpu.new_stream(), gpu.new_stream(1)
    snapshots, there_snapshots = [], []
    for number in range(20):
        values = torch.full((4000,), float(number))
        # Made on streams, reduced there, used on another, and freed at once: their memory is the next ones'.
        with gpu.stream(side), gpu.stream(second, 1):
            tensors = [gpu.tensor(values), gpu.tensor(values + 1, index=1)]
            handle = bps.grouped_allreduce_async(tensors, op=bps.Sum, name="x")
            del tensors
        with gpu.stream(other), gpu.stream(second, 1):
            first, there = bps.synchronize(handle)
            snapshots.append((number, gpu.later(first)))
            there_snapshots.append(gpu.later(there))
            assert bps.poll(handle)
        # Behind what the first wait has put into a stream: a copy to a place with gaps, a division of whole numbers.
        wide = gpu.tensor(torch.full((4000, 2), float(number)))
        whole = gpu.tensor(torch.full((4000,), bps.size() * number))
        gpu.order(0, side)
        with gpu.stream(side):
            handle = bps.grouped_allreduce_async_([wide[:, 1]], op=bps.Sum, name="column")
            divided = bps.grouped_allreduce_async_([whole], op=bps.Average, name="whole")
            bps.synchronize(handle)
            bps.synchronize(divided)
        with gpu.stream(other):
            snapshots.append((number, gpu.later(bps.synchronize(divided)[0])))
            snapshots.append((number, gpu.later(bps.synchronize(handle)[0])))
        del handle, divided, first, there, wide, whole
    # The host does not wait though the stream does not get there.
    values = gpu.tensor(torch.full((4000,), 1.0))
    handle = bps.grouped_allreduce_async([values, values], op=bps.Sum, name="held")
    release = gpu.hold(other)
    with gpu.stream(other):
        held = [gpu.later(one) for one in bps.synchronize(handle)]
    assert held == [[], []]
    release()
    snapshots += [(1, one) for one in held]
    for number in range(10):
        tensors = [gpu.tensor(torch.full((5000,), float(number))) for _ in range(2)]
        bps.grouped_allreduce_async(tensors, op=bps.Sum, name=f"dropped.{number}")
        del tensors
        gpu.tensor(torch.zeros(5000))
    gc.collect()
    assert gpu.counts()["synchronisations"] == before
    for stream in (side, other):
        with gpu.stream(stream):
            gpu.synchronize(0)
    with gpu.stream(second, 1):
        gpu.synchronize(1)
    for number, found in snapshots:
        assert torch.equal(found[0].float(), torch.full((4000,), float(number * bps.size())))
    for number, found in enumerate(there_snapshots):
        assert torch.equal(found[0], torch.full((4000,), float((number + 1) * bps.size())))


def _errors_of_groups(gpu: FakeCuda) -> None:
    x, y = gpu.tensor(torch.ones(300)), gpu.tensor(torch.ones(300), index=1)
    side, second = gpu.new_stream(), gpu.new_stream(1)
    with (
        gpu.stream(second),
        pytest.raises(bps.InvalidArgumentError, match=r"operation 1 of the group.*\.x\.2.*stream is of GPU 1"),
    ):
        bps.grouped_allreduce([y, x], name="x")
    gpu.order(0, side)
    gpu.capture(side, True)
    with (
        gpu.stream(side),
        pytest.raises(bps.FailedPreconditionError, match=r"operation 0 of the group.*captured into a CUDA graph"),
    ):
        bps.grouped_allreduce_([x, y], name="x")
    handle = bps.grouped_allreduce_async_([x, y], op=bps.Sum, name="x")
    gathered = bps.grouped_allgather_async([gpu.tensor(torch.ones(300))], name="gathered")
    for one in (handle, gathered):
        with gpu.stream(side), pytest.raises(bps.FailedPreconditionError, match="captured into a CUDA graph"):
            bps.synchronize(one)
    gpu.capture(side, False)
    assert [gpu.read(one)[0] for one in bps.synchronize(handle)] == [2, 2]
    assert gpu.read(bps.synchronize(gathered)[0]).tolist() == [1.0] * 600
    # All or nothing, and the session goes on.
    odd = gpu.tensor(torch.ones(5 + bps.rank()))
    with pytest.raises(bps.FailedPreconditionError, match=r"odd\.2"):
        bps.grouped_allreduce([x, odd], op=bps.Sum, name="odd")
    assert gpu.read(bps.grouped_allreduce([x], op=bps.Sum, name="x")[0])[0] == 4


def _adasum(gpu: FakeCuda) -> None:
    def train(model: nn.Module, place: Callable[[torch.Tensor], torch.Tensor], prefix: str) -> None:
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            [(prefix + name, parameter) for name, parameter in model.named_parameters()],
            op=bps.Adasum,
            groups=1,
        )
        for step in range(3):
            optimizer.zero_grad()
            batch = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + bps.rank()))
            (model(place(batch)) ** 2).mean().backward()
            optimizer.step()

    torch.manual_seed(1)
    reference = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    model = copy.deepcopy(reference)
    for module in (model[0], model[2]):
        for name, parameter in list(module._parameters.items()):
            module._parameters[name] = nn.Parameter(gpu.tensor(parameter))
    before = gpu.counts()["synchronisations"]
    train(model, gpu.tensor, "gpu.")
    assert gpu.counts()["synchronisations"] == before
    train(reference, lambda batch: batch, "cpu.")
    for mine, theirs in zip(model.parameters(), reference.parameters()):
        assert torch.equal(gpu.read(mine), theirs.detach())


def _messages(gpu: FakeCuda) -> None:
    before = gpu.counts()["synchronisations"]
    rank, peer = bps.rank(), 1 - bps.rank()
    rooms = []
    for number in range(6):
        room = gpu.tensor(torch.zeros(3000))
        wide = gpu.tensor(torch.full((3000, 2), -1.0))
        handles = [
            bps.recv_async(room, peer, name="a"),
            bps.recv_async(wide[:, 1], peer, name="b"),
            bps.send_async(gpu.tensor(torch.full((3000,), 10.0 * rank + number)), peer, name="a"),
            bps.send_async(torch.full((3000,), 20.0 * rank + number), peer, name="b"),
        ]
        assert bps.synchronize(handles[0]) is room
        rooms.append((number, room * 1, wide))
        for handle in handles[1:]:
            bps.synchronize(handle)
    assert gpu.counts()["synchronisations"] == before
    for number, first, wide in rooms:
        assert torch.equal(gpu.read(first), torch.full((3000,), 10.0 * peer + number))
        assert torch.equal(gpu.read(wide)[:, 1], torch.full((3000,), 20.0 * peer + number))
        assert torch.equal(gpu.read(wide)[:, 0], torch.full((3000,), -1.0))
    # Another shape, and the session goes on.
    handles = [bps.send_async(gpu.tensor(torch.ones(3)), peer), bps.recv_async(gpu.tensor(torch.ones(2)), peer)]
    with pytest.raises((bps.BytePSError, ValueError)):
        bps.synchronize(handles[1])
    with pytest.raises(bps.BytePSError):
        bps.synchronize(handles[0])
    assert bps.push_pull(torch.ones(1), average=False, name="host").item() == 2


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(400, 6, sparse=True), nn.Linear(6, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(words))


def _train_words(model: nn.Module, place: Callable[[torch.Tensor], torch.Tensor], prefix: str, **options: Any) -> None:
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        [(prefix + name, parameter) for name, parameter in model.named_parameters()],
        **options,
    )
    for step in range(4):
        optimizer.zero_grad()
        # At the second step more rows than the whole has.
        count = 900 if step == 1 else 12
        words = torch.randint(0, 400, (count,), generator=torch.Generator().manual_seed(10 * step + bps.rank()))
        model(place(words)).square().mean().backward()
        optimizer.step()
        assert model.words.weight.grad.layout is torch.sparse_coo


def _sparse(gpu: FakeCuda) -> None:
    for kind, options in {"plain": {}, "fp16": {"compression": bps.Compression.fp16}}.items():
        torch.manual_seed(1)
        reference = _Words()
        model = copy.deepcopy(reference)
        for module in (model.words, model.out):
            for name, parameter in list(module._parameters.items()):
                module._parameters[name] = nn.Parameter(gpu.tensor(parameter))
        before = gpu.counts()["synchronisations"]
        _train_words(model, gpu.tensor, f"gpu.{kind}.", **options)
        assert gpu.counts()["synchronisations"] == before, "the host waited for the GPU"
        _train_words(reference, lambda batch: batch, f"cpu.{kind}.", **options)
        for mine, theirs in zip(model.parameters(), reference.parameters()):
            assert torch.equal(gpu.read(mine), theirs.detach()), kind
    # The call does not wait for what the stream holds, and the tensor may be changed behind it.
    side = gpu.new_stream()
    with gpu.stream(side):
        indices, values = gpu.tensor(torch.tensor([[5, 1, 5]])), gpu.tensor(torch.ones(3, 2))
        sparse = torch.sparse_coo_tensor(indices, values, (9, 2))
        release = gpu.hold(side)
        handle = bps.sparse_allreduce_async(sparse, name="held", op=bps.Sum)
        values.zero_()
        assert not handle.poll()
        with pytest.raises(bps.DeadlineExceededError, match="held: the GPU had not come to the copy"):
            handle.synchronize(0.1)
        given_up = bps.sparse_allreduce_async(sparse, name="given up", op=bps.Sum)
        given_up.cancel()
        release()
        result = handle()
        assert gpu.read(result._indices()).tolist() == [[1, 5]]
        assert gpu.read(result._values()).tolist() == [[2.0, 2.0], [4.0, 4.0]]
        with pytest.raises((bps.CancelledError, bps.AbortedError)):
            given_up.synchronize()
        nothing = gpu.tensor(torch.empty((1, 0), dtype=torch.int64)), gpu.tensor(torch.empty(0, 2))
        empty = bps.sparse_allreduce_async(torch.sparse_coo_tensor(*nothing, (9, 2)), name="empty", op=bps.Sum)()
        assert empty.shape == (9, 2) and empty._values().shape == (0, 2)
        gpu.capture(side, True)
        with pytest.raises(bps.FailedPreconditionError, match="captured into a CUDA graph"):
            bps.sparse_allreduce_async(sparse, name="captured", op=bps.Sum)
        gpu.capture(side, False)


def _job() -> None:
    with gpus_of_job() as gpu:
        for part in (_streams_of_groups, _errors_of_groups, _messages, _adasum, _sparse):
            part(gpu)


@pytest.mark.parametrize(("servers", "schedule"), [(1, "late"), (1, "random"), (0, "random")])
def test_streams_errors_messages_adasum_and_sparse_tensors(
    run_workers: RunWorkers, servers: int, schedule: str
) -> None:
    """One job for all of them, since most of the time goes into its start."""
    run_workers(_job, servers=servers, **fake_gpus(schedule))
