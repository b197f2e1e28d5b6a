"""Sparse gradients: sums, training with the bits of dense ones, bytes that are sent, and what is refused."""

from __future__ import annotations

import copy
import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from example_runs import run_example
from jobs import Outcomes
from torch import nn

RunWorkers = Callable[..., Any]


def _of(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of 6 rows: the first twice, one of its own, the last."""
    values = torch.arange(1.0, 9.0).reshape(4, 2) * (rank + 1)
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 1 + rank, 5]]), values.to(dtype), (6, 2))


def _sums() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        total = sum(_of(other, dtype).to_dense().double() for other in range(size))
        handle = hvd.sparse_allreduce_async(_of(rank, dtype), name="x", op=hvd.Sum)
        result = handle()
        assert result.is_sparse and result.is_coalesced() and result.dtype == dtype
        assert torch.equal(result.to_dense().double(), total)
        assert hvd.synchronize(handle) is result and hvd.poll(handle)
        if dtype.is_floating_point:
            result = hvd.sparse_allreduce_async(_of(rank, dtype), "y", hvd.Average)()
            assert torch.equal(result.to_dense().double(), total / size)
    # Averages of integers are truncated, and rows of one index add up before that.
    numbers = torch.sparse_coo_tensor(torch.tensor([[1, 1, 40]]), torch.tensor([-2, -1 - rank, 5 * rank]), (50,))
    result = hvd.sparse_allreduce_async(numbers, op=hvd.Average)()
    assert result.dtype == torch.int64
    assert result.to_dense()[[1, 40]].tolist() == [-3, 2]
    # Rows of scalars; nothing of any rank; a tensor without rows.
    for extents in ((30,), (30, 0), (0, 3)):
        none = torch.sparse_coo_tensor(torch.empty((1, 0)), torch.empty((0, *extents[1:])), extents)
        assert torch.equal(hvd.sparse_allreduce_async(none, op=hvd.Sum)().to_dense(), torch.zeros(extents))
    # The bits of dense tensors; of 50 rows nearly all are touched, and the whole is less.
    for count, touched in ((4000, 40), (50, 3000)):
        source = torch.Generator().manual_seed(rank)
        rows = torch.randint(count, (touched,), generator=source)
        mine = torch.sparse_coo_tensor(rows[None], torch.randn(touched, 5, generator=source), (count, 5))
        result = hvd.sparse_allreduce_async(mine, op=hvd.Average)()
        assert torch.equal(result.to_dense(), hvd.allreduce(mine.to_dense()))
        assert result.is_coalesced() and result._nnz() == len(hvd.allgather(rows).unique())
    # Two sparse dimensions, and one rank that has nothing.
    place = torch.tensor([[rank, 1], [2, 0]])
    result = hvd.sparse_allreduce_async(torch.sparse_coo_tensor(place, torch.ones(2), (3, 3)), op=hvd.Sum)()
    assert torch.equal(result.to_dense(), torch.tensor([[0, 0, 1.0], [size, 0, 1], [0, 0, 0]]))
    mine = _of(1) if rank == 1 else torch.sparse_coo_tensor(torch.empty((1, 0)), torch.empty((0, 2)), (6, 2))
    assert torch.equal(hvd.sparse_allreduce_async(mine, op=hvd.Sum)().to_dense(), _of(1).to_dense())
    alone = hvd.add_process_set([0])
    if rank == 0:
        result = hvd.sparse_allreduce_async(_of(0), process_set=alone)()
        assert torch.equal(result.to_dense(), _of(0).to_dense())
    for call, error, text in (
        (lambda: hvd.sparse_allreduce_async(torch.ones(2)), ValueError, "layout"),
        (lambda: hvd.sparse_allreduce_async([1]), TypeError, "Tensor"),
        (lambda: hvd.sparse_allreduce_async(_of(0), op=hvd.Max), NotImplementedError, "Sum and Average"),
        (lambda: hvd.sparse_allreduce_async(_of(0), process_set=[0]), TypeError, "ProcessSet"),
    ):
        with pytest.raises(error, match=text):
            call()
    with pytest.raises(hvd.FailedPreconditionError, match="agree"):
        hvd.sparse_allreduce_async(_of(0, torch.float64 if rank else torch.float32), name="odd")()


class _Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 6, sparse=sparse)
        self.marks = nn.Embedding(10, 6, sparse=sparse)
        self.head = nn.Linear(6, 3)

    def forward(self, words: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        hidden = self.words(words)
        if marks is not None:
            hidden = hidden + self.marks(marks)
        return self.head(hidden.mean(1))


def _train(sparse: bool, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _Model(sparse)
    overlap = options.pop("overlap", False)
    wrap = options.pop("wrap", False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.5))
    run: nn.Module = model
    if wrap:
        run = hvd.parallel.DistributedDataParallel(model)
    else:
        options["overlap_forward"] = model if overlap else None
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    for step in range(5):
        source = torch.Generator().manual_seed(10 * step + hvd.rank())
        words = torch.randint(40, (4, 3), generator=source)
        # Rank 1 reaches the second embedding in no pass but the third.
        marks = torch.randint(10, (4, 3), generator=source) if hvd.rank() == 0 or step == 2 else None
        optimizer.zero_grad()
        run(words, marks).square().sum().backward()
        optimizer.step()
        if sparse and not overlap:
            assert model.words.weight.grad.is_sparse and model.marks.weight.grad.is_sparse
    if overlap:
        optimizer.finish_step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _trains() -> None:
    hvd.init()
    for options in (
        {},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
        {"groups": 2},
        {"overlap": True},
        {"wrap": True},
    ):
        dense, sparse = _train(False, **options), _train(True, **options)
        for one, other in zip(dense, sparse):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-7), options
        assert len(hvd.allgather_object(sparse)) == 2
        for other in hvd.allgather_object(sparse):
            assert all(torch.equal(a, b) for a, b in zip(other, sparse)), "the same bits on all ranks"
    half, exact = _train(True, lr=0.01, compression=hvd.Compression.fp16), _train(False, lr=0.01)
    assert all(torch.allclose(a, b, atol=0.01) for a, b in zip(half, exact))
    assert not all(torch.equal(a, b) for a, b in zip(half, exact))
    dense, converted = _train(False), _train_as_dense()
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(dense, converted))


def _train_as_dense() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _Model(True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), sparse_as_dense=True
    )
    for step in range(5):
        source = torch.Generator().manual_seed(10 * step + hvd.rank())
        words = torch.randint(40, (4, 3), generator=source)
        marks = torch.randint(10, (4, 3), generator=source) if hvd.rank() == 0 or step == 2 else None
        optimizer.zero_grad()
        model(words, marks).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _mixed_layouts() -> None:
    """What is sparse on one rank and dense on another in the first pass is dense; what was settled sparse stays so."""
    hvd.init()
    rank = hvd.rank()
    weight = nn.Parameter(torch.zeros(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)

    def pass_with(sparse: bool) -> None:
        optimizer.zero_grad()
        if sparse:
            nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True).sum().backward()
        else:
            (weight[1].sum() * 2).backward()
        optimizer.step()

    pass_with(sparse=rank == 0)
    assert not weight.grad.is_sparse and weight[1].tolist() == [-4.0, -4.0]
    pass_with(sparse=True)
    assert not weight.grad.is_sparse and weight[1].tolist() == [-8.0, -8.0]
    weight = nn.Parameter(torch.zeros(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    pass_with(sparse=True)
    pass_with(sparse=rank == 0)
    assert weight.grad.is_sparse and weight[1].tolist() == [-8.0, -8.0]
    weight = nn.Parameter(torch.zeros(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Max)
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        pass_with(sparse=True)


class _Tasks(nn.Module):
    """Two embeddings, of which a pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(6, 2, sparse=True) for _ in range(2))

    def forward(self, which: int, row: int) -> torch.Tensor:
        return self.tables[which](torch.tensor([row, row])).square().sum()


def _used_later() -> None:
    """An embedding that no rank has used yet: its gradients are sparse when it is used."""
    hvd.init()
    rank = hvd.rank()
    for make, groups in ((torch.optim.SGD, None), (torch.optim.SGD, 1), (torch.optim.SparseAdam, None)):
        torch.manual_seed(0)
        model = _Tasks()
        alone = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum, groups=groups
        )
        reference = make(alone.parameters(), lr=0.1)
        tables = [table.weight for table in model.tables]
        # Which each rank uses, step by step.
        for step, used in enumerate(([0, 0], [0, 0], [1, 0], [0, 1], [1, 1])):
            optimizer.zero_grad()
            model(used[rank], 1 + rank).backward()
            optimizer.step()
            reference.zero_grad()
            sum(alone(which, 1 + other) for other, which in enumerate(used)).backward()
            for parameter in alone.parameters():
                if parameter.grad is None and make is torch.optim.SparseAdam:  # which counts the step
                    parameter.grad = torch.sparse_coo_tensor(torch.empty((1, 0)), torch.empty((0, 2)), (6, 2))
            reference.step()
            for mine, wanted in zip(model.parameters(), alone.parameters()):
                assert torch.allclose(mine, wanted, rtol=1e-5, atol=1e-6), (make, step)
            assert tables[0].grad.is_sparse
            assert tables[1].grad.is_sparse == (step >= 2 or make is torch.optim.SparseAdam), (make, step)
    everywhere = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*everywhere))


BODIES = [_sums, _trains, _mixed_layouts, _used_later]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _sent() -> int:
    """Bytes that this host's loopback carries during ten steps of an embedding of 64 MB of which 8 rows are touched."""
    hvd.init()
    embedding = nn.Embedding(1 << 18, 64, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))

    def step() -> None:
        optimizer.zero_grad()
        embedding(torch.arange(8) + 8 * hvd.rank()).sum().backward()
        optimizer.step()

    def carried() -> int:
        lines = Path("/proc/net/dev").read_text().splitlines()
        return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))

    step()
    hvd.barrier()
    before = carried()
    for _ in range(10):
        step()
    hvd.barrier()
    return carried() - before


def test_bytes_are_those_of_the_rows(run_workers: RunWorkers) -> None:
    """Ten steps send 2 x 10 x 8 rows of 264 bytes; a dense one would send 64 MB. (Others may use the loopback, too.)"""
    results = run_workers(_sent, workers=2, servers=1, BYTEPS_SHM="0", BYTEPS_TRANSPORT="tcp").results
    assert min(results) < 16_000_000


def _received() -> int:
    """Bytes that the TCP connections of this process have received, as the kernel counts them."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    # tcpi_bytes_received, behind 8 bytes, 24 words and 3 double words.
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                    total += struct.unpack_from("Q", info, 128)[0] if len(info) == 136 else 0
        except OSError:
            continue  # closed meanwhile
    return total


def _received_of_rows(counts: list[int], steps: int) -> list[int]:
    """What this rank receives in some steps, for each number of rows that every rank touches."""
    hvd.init()
    found = []
    for count in counts:
        embedding = nn.Embedding(1 << 16, 64, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=1.0), [(f"{count}", embedding.weight)]
        )
        for step in range(steps + 1):
            if step == 1:  # the first agrees on what is sparse
                hvd.barrier()
                before = _received()
            optimizer.zero_grad()
            embedding(torch.arange(count) + count * hvd.rank()).sum().backward()
            optimizer.step()
            assert embedding.weight.grad._nnz() == count * hvd.size()
        hvd.barrier()
        found.append(_received() - before)
    return found


def test_bytes_are_in_proportion_to_the_rows(run_workers: RunWorkers) -> None:
    """Of each rank the other gets, in each step, its rows of 64 numbers of 4 bytes, with a row's number of 8."""
    counts, steps = [100, 400, 1600], 10
    arguments = dict(workers=2, servers=1, BYTEPS_SHM="0", BYTEPS_TRANSPORT="tcp")
    for found in run_workers(_received_of_rows, counts, steps, **arguments).results:
        per_row = [
            (found[more] - found[less]) / steps / (counts[more] - counts[less])
            for less, more in ((0, 1), (1, 2), (0, 2))
        ]
        assert all(0.95 * 264 < each < 1.1 * 264 for each in per_row), (found, per_row)


def test_a_transformer_of_sparse_letters() -> None:
    """The example learns as well with sparse gradients of its letters, which an optimizer of their own takes."""
    arguments = ("--steps", "60", "--width", "32", "--length", "32", "--layers", "1", "--characters", "50000")
    ends = []
    for options in ((), ("--sparse",), ("--sparse", "--fp16-allreduce")):
        output = run_example("torch/transformer.py", *arguments, *options, workers=2)
        losses = [float(loss) for loss in re.findall(r"step .* loss (\d+\.\d+)$", output, re.MULTILINE)]
        assert len(losses) == 10 and losses[-1] < 0.85 * losses[0], output
        ends.append(losses[-1])
    assert max(ends) < 1.1 * min(ends), ends
