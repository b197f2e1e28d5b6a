"""push_pull and broadcast over several workers: the bits, the errors on every rank, and that the session goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from numpy_reduction import DTYPES, OPS, make, reduce, same_bits

RunWorkers = Callable[..., Any]

SHAPES = [(), (0,), (1,), (1001,), (33, 0), (37, 41)]


def _all_dtypes_and_ops() -> int:
    bps.init()
    rank, size = bps.rank(), bps.size()
    checked = 0
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = [make(dtype, shape, of) for of in range(size)]
            for op in OPS:
                expected = reduce(inputs, op)
                name = f"{dtype} {shape} {op}"
                given = inputs[rank].clone()
                result = bps.push_pull(given, op=bps.ReduceOp[op], name=name)
                assert same_bits(result, expected), (name, inputs, result, expected)
                assert same_bits(given, inputs[rank]), "the input is left alone"
                checked += 1
            transposed = inputs[rank].t() if inputs[rank].dim() == 2 else inputs[rank]
            wanted = reduce([part.t() if part.dim() == 2 else part for part in inputs], "Sum")
            bps.push_pull_inplace(transposed, average=False, name=f"{dtype} {shape} transposed")
            assert same_bits(transposed.contiguous(), wanted.contiguous())
    return checked


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (2, 3)])
def test_the_documented_bits(run_workers: RunWorkers, workers: int, servers: int) -> None:
    results = run_workers(_all_dtypes_and_ops, workers=workers, servers=servers).results
    assert results == [len(DTYPES) * len(SHAPES) * len(OPS)] * workers


def _digest_of_large_tensors() -> list[bytes]:
    import hashlib

    bps.init()
    digests = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        tensor = make(dtype, (300_001,), bps.rank()).nan_to_num(nan=1.5)
        result = bps.push_pull(tensor, name=f"large {dtype}")
        expected = reduce([make(dtype, (300_001,), of).nan_to_num(nan=1.5) for of in range(bps.size())], "Average")
        assert same_bits(result, expected)
        digests.append(hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).digest())
    return digests


def test_the_same_bits_however_cut_and_placed(run_workers: RunWorkers) -> None:
    digests = [
        result
        for servers, partition in ((1, "65536"), (3, "4194304"), (2, "100000"))
        for result in run_workers(
            _digest_of_large_tensors, workers=2, servers=servers, BYTEPS_PARTITION_BYTES=partition
        ).results
    ]
    assert digests == [digests[0]] * len(digests)


def _in_any_order() -> None:
    """Many at once; each rank starts and waits in an order of its own."""
    bps.init()
    rank = bps.rank()
    tensors = [torch.full((17 * number + 1,), float(number + rank)) for number in range(100)]
    order = list(range(100)) if rank == 0 else list(reversed(range(100)))
    handles = {
        number: bps.push_pull_async(tensors[number], name=f"tensor {number}", priority=number % 7, average=False)
        for number in order
    }
    for number in sorted(order, key=lambda number: number * 37 % 100):
        result = bps.synchronize(handles[number])
        assert torch.equal(result, torch.full((17 * number + 1,), 2.0 * number + 1)), number
    # Unnamed ones need the same order, and nothing else.
    if rank == 0:
        bps.synchronize(bps.broadcast_async(torch.ones(1), 0, name="of rank 0, at another time"))
    unnamed = [bps.push_pull_async(torch.tensor([number]), average=False) for number in range(20)]
    if rank != 0:
        bps.synchronize(bps.broadcast_async(torch.ones(1), 0, name="of rank 0, at another time"))
    assert [bps.synchronize(handle).item() for handle in unnamed] == [2 * number for number in range(20)]


def _asynchronous() -> None:
    bps.init()
    tensors = [torch.ones(17, 17, 17) for _ in range(15)]
    if bps.rank() == 1:
        bps.barrier("rank 0 has begun")
    handles = [bps.push_pull_async(tensor, average=False) for tensor in tensors]
    if bps.rank() == 0:
        assert not any(bps.poll(handle) for handle in handles), "the other rank has not begun"
        bps.barrier("rank 0 has begun")
    deadline = time.monotonic() + 60
    while not all(bps.poll(handle) for handle in handles):
        assert time.monotonic() < deadline
    assert all(torch.equal(bps.synchronize(handle), 2 * tensor) for handle, tensor in zip(handles, tensors))

    # A barrier is no drain: it passes while an operation is in flight that the other rank has not begun.
    handle = None
    if bps.rank() == 0:
        handle = bps.push_pull_async(torch.ones(3), name="late")
        with pytest.raises(ValueError, match="late"):  # the name is taken until it ends
            bps.push_pull(torch.ones(3), name="late")
    bps.barrier()
    if handle is None:
        handle = bps.push_pull_async(torch.ones(3), name="late")
    bps.barrier()
    assert torch.equal(bps.synchronize(handle), torch.ones(3))


def _mismatches() -> None:
    bps.init()
    rank = bps.rank()

    def expect(call: Callable[[], object], name: str, *words: str) -> None:
        with pytest.raises(bps.FailedPreconditionError) as raised:
            call()
        for word in (name, *words):
            assert word in str(raised.value), (word, str(raised.value))
        assert raised.value.retryable

        # The session goes on, and so does the name.
        assert bps.push_pull(torch.ones(3), average=False, name=name)[0] == 2

    expect(lambda: bps.push_pull(torch.ones(3 + rank), name="shape"), "shape")
    expect(
        lambda: bps.push_pull(torch.ones(3 * (1 + rank)).reshape(-1, 3), name="dimensions"), "dimensions", "1x3", "2x3"
    )
    expect(lambda: bps.push_pull(torch.ones(3).to([torch.float32, torch.float64][rank]), name="dtype"), "dtype")
    expect(lambda: bps.push_pull(torch.ones(3), op=[bps.Sum, bps.Min][rank], name="operation"), "operation")
    expect(lambda: bps.broadcast(torch.ones(3), root_rank=rank, name="root"), "root")
    expect(
        lambda: bps.push_pull(torch.ones(3), name="kind") if rank == 0 else bps.broadcast(torch.ones(3), 0, "kind"),
        "kind",
    )
    expect(lambda: bps.push_pull(torch.ones(rank), name="empty"), "empty")
    expect(lambda: bps.push_pull(torch.ones(10_000_000 if rank else 3), name="much larger"), "much larger")


def _shapes_change() -> None:
    bps.init()
    for turn in range(3):
        for dtype in (torch.float32, torch.int64):
            for shape in ((4,), (2, 2), (), (1000, 100)):
                result = bps.push_pull(torch.full(shape, turn, dtype=dtype), average=False, name="one name")
                assert torch.equal(result, torch.full(shape, 2 * turn, dtype=dtype))


def _gradients() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    weights = torch.tensor([1.0, 10.0, 100.0]) * (rank + 1)
    for op, of_sum in ((bps.Sum, 1.0), (bps.Average, 1.0 / size)):
        tensor = torch.ones(3, requires_grad=True)
        (bps.push_pull(tensor, op=op, name="x") * weights).sum().backward()
        expected = torch.tensor([1.0, 10.0, 100.0]) * sum(range(1, size + 1)) * of_sum
        assert torch.allclose(tensor.grad, expected)
    tensor = torch.full((3,), float(rank), requires_grad=True)
    result = bps.broadcast(tensor, root_rank=1)
    assert torch.equal(result.detach(), torch.ones(3))
    (result * weights).sum().backward()
    expected = torch.tensor([1.0, 10.0, 100.0]) * sum(range(1, size + 1)) / size
    assert torch.equal(tensor.grad, expected if rank == 1 else torch.zeros(3))


def _broadcasts() -> None:
    bps.init()
    rank = bps.rank()
    for dtype in DTYPES:
        for shape in SHAPES:
            for root in range(bps.size()):
                source = make(dtype, shape, root)
                mine = make(dtype, shape, rank)
                assert same_bits(bps.broadcast(mine, root, name=f"{dtype}{shape}"), source)
                assert same_bits(mine, make(dtype, shape, rank))
                bps.broadcast_(mine, root, name=f"{dtype}{shape}")
                assert same_bits(mine, source)
    transposed = torch.full((3, 4), float(rank)).t()
    bps.broadcast_(transposed, 1)
    assert torch.equal(transposed, torch.ones(4, 3))


def _average_left_open() -> None:
    bps.init()
    tensor = torch.ones(3) * bps.rank()
    mean = torch.full((3,), (bps.size() - 1) / 2)
    assert torch.equal(bps.push_pull(tensor, None, "positional"), mean)
    assert torch.equal(bps.synchronize(bps.push_pull_async(tensor, None, "asynchronous")), mean)
    assert torch.equal(bps.push_pull_inplace(tensor, None, "in place"), mean)


def _compressed() -> None:
    bps.init()
    rank = bps.rank()
    inputs = [make(torch.float32, (5000,), of).nan_to_num() for of in range(bps.size())]
    result = bps.push_pull(inputs[rank], compression=bps.Compression.fp16, name="x")
    assert same_bits(result, reduce([tensor.half() for tensor in inputs], "Average").float())


def _missing(seconds: float) -> str:
    """Rank 1 does not take part; what rank 0 is told, and after how long."""
    bps.init()
    message = ""
    if bps.rank() == 0:
        start = time.monotonic()
        with pytest.raises(bps.DeadlineExceededError) as raised:
            bps.push_pull(torch.ones(3), name="lonely")
        assert time.monotonic() - start < seconds + 30
        assert "lonely" in str(raised.value)
        message = str(raised.value)
        with pytest.raises(bps.DeadlineExceededError, match=r"\b1\b"):
            bps.barrier("nobody else", timeout=seconds)
    bps.barrier("the end", timeout=60)
    return message


def test_who_is_missing(run_workers: RunWorkers) -> None:
    message = run_workers(_missing, 4.0, BYTEPS_OP_TIMEOUT="4").results[0]
    assert "rank 1" in message or "ranks 1" in message, message


def _forced_alone() -> int:
    bps.init()
    tensor = make(torch.float32, (100_000,), 0)
    assert same_bits(bps.push_pull(tensor, name="x"), tensor)
    return bps.info().num_servers


def test_one_worker_through_the_servers(run_workers: RunWorkers) -> None:
    assert run_workers(_forced_alone, workers=1, servers=2).results == [2]


def test_one_worker_without_servers(run_alone: RunWorkers) -> None:
    assert run_alone(_forced_alone).results == [0]


def _a_peer_dies() -> list[str]:
    """Of three, before it takes part in what the others have started; what they are told, then and later."""
    bps.init()
    assert bps.push_pull(torch.ones(3), average=False, name="all").tolist() == [3, 3, 3]
    handles = [bps.push_pull_async(torch.ones(3), name="lonely")] if bps.rank() != 1 else []
    handles += [bps.allgather_async(torch.ones(3), name="lonely")] if bps.rank() != 1 else []
    bps.barrier("both have begun")
    if bps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    for wait in (
        *(lambda handle=handle: bps.synchronize(handle) for handle in handles),
        lambda: bps.push_pull(torch.ones(3), name="later"),
        lambda: bps.allgather(torch.ones(3), name="later"),
        lambda: bps.broadcast(torch.ones(3), 0, name="later"),
    ):
        with pytest.raises(bps.UnavailableError) as raised:
            wait()
        texts.append(str(raised.value))
    return texts


@pytest.mark.parametrize("servers", [0, 1])
def test_a_peer_dies(run_workers: RunWorkers, servers: int) -> None:
    job = run_workers(_a_peer_dies, workers=3, servers=servers, check=False, BYTEPS_OP_TIMEOUT="120")
    for rank in (0, 2):
        assert job.results[rank] is not None, job.output
        assert all("rank 1" in text for text in job.results[rank]), job.results[rank]


BODIES = [
    _in_any_order,
    _asynchronous,
    _mismatches,
    _shapes_change,
    _gradients,
    _broadcasts,
    _average_left_open,
    _compressed,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


# Of any number of workers.
OF_ANY_SIZE = [_gradients, _broadcasts, _average_left_open]


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (4, 0)])
def test_with_more_workers(run_bodies: Callable[..., Outcomes], workers: int, servers: int) -> None:
    outcomes = run_bodies(OF_ANY_SIZE, workers, servers)
    for body in OF_ANY_SIZE:
        outcomes.check(body)
