"""allgather, reducescatter, alltoall and their groups: values, dtypes, gradients, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from jobs import Outcomes

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def _of(rank: int, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of three that tell their rank."""
    return (torch.arange(3 * rows) + 10 * rank).reshape(rows, 3).remainder(50).to(dtype)


def _rows_of(rank: int, rows: int, size: int) -> slice:
    """This rank's, of so many that are divided as evenly as possible."""
    begins = [other * (rows // size) + min(other, rows % size) for other in range(size + 1)]
    return slice(begins[rank], begins[rank + 1])


def _gathers() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        expected = torch.cat([_of(other, other + 1, dtype) for other in range(size)])
        mine = _of(rank, rank + 1, dtype)
        result = hvd.allgather(mine)
        assert torch.equal(result, expected) and result.dtype == dtype
        handle = hvd.allgather_async(mine, name="x")
        assert torch.equal(hvd.synchronize(handle), expected) and hvd.poll(handle)
    # No rows at all on one rank, not contiguous, scalars, much, and a result that is written to.
    expected = torch.cat([_of(other, 2 * other) for other in range(size)])
    assert torch.equal(hvd.allgather(_of(rank, 2 * rank)), expected)
    wide = torch.arange(12.0).reshape(3, 4).add(rank).t()
    assert torch.equal(hvd.allgather(wide), torch.cat([wide - rank + other for other in range(size)]))
    assert hvd.allgather(torch.tensor(float(rank))).tolist() == list(range(size))
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    large = hvd.allgather(torch.full((300_000,), float(rank)))
    large += 1
    assert large.reshape(size, -1).mean(1).tolist() == [other + 1 for other in range(size)]
    tensors = [_of(rank, 2), _of(rank, rank, torch.int64), torch.tensor(rank)]
    expected = [
        torch.cat([_of(other, 2) for other in range(size)]),
        torch.cat([_of(other, other, torch.int64) for other in range(size)]),
        torch.arange(size),
    ]
    for results in (
        hvd.grouped_allgather(tensors),
        hvd.synchronize(hvd.grouped_allgather_async(tensors, name="group")),
    ):
        assert all(torch.equal(one, other) for one, other in zip(results, expected)) and len(results) == 3
    assert hvd.grouped_allgather([]) == [] and hvd.synchronize(hvd.grouped_allgather_async([])) == []


def _reduces_and_scatters() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        if dtype is torch.bool:
            continue
        inputs = torch.stack([_of(other, 5, dtype) for other in range(size)])
        whole = inputs.to(torch.complex128 if dtype.is_complex else torch.float64).sum(0)
        wanted: dict[Any, torch.Tensor] = {hvd.Sum: whole, hvd.Average: whole / size}
        if not dtype.is_complex:
            wanted.update({hvd.Max: inputs.amax(0), hvd.Min: inputs.amin(0)})
        for op, reduced in wanted.items():
            if not (dtype.is_floating_point or dtype.is_complex):
                reduced = reduced.trunc() if reduced.is_floating_point() else reduced
            expected = reduced.to(dtype)[_rows_of(rank, 5, size)]
            given = _of(rank, 5, dtype)
            assert torch.equal(hvd.reducescatter(given, op=op), expected), (dtype, op)
            assert torch.equal(hvd.synchronize(hvd.reducescatter_async(given, op=op, name="x")), expected)
            assert torch.equal(given, _of(rank, 5, dtype))
    ones = torch.ones(4)
    mine = len(ones[_rows_of(rank, 4, size)])
    scaled = hvd.reducescatter(ones, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert scaled.tolist() == [1.5 * size] * mine
    odd = torch.full((4,), 1 - size if rank else -size, dtype=torch.int32)
    assert hvd.reducescatter(odd).tolist() == [int((-size - (size - 1) ** 2) / size)] * mine, "truncated"
    assert hvd.reducescatter(ones, compression=hvd.Compression.fp16).dtype == torch.float32
    assert hvd.reducescatter(torch.ones(1)).shape == ((1,) if rank == 0 else (0,))
    tensors = [_of(rank, 4), torch.ones(2, dtype=torch.float64)]
    for results in (
        hvd.grouped_reducescatter(tensors, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=hvd.Sum)),
        hvd.grouped_reducescatter(tensors, op=hvd.Sum, compression=hvd.Compression.bf16),
    ):
        whole = torch.stack([_of(other, 4) for other in range(size)]).sum(0)
        assert torch.equal(results[0], whole[_rows_of(rank, 4, size)])
        assert results[1].tolist() == [float(size)] * (rank < 2) and results[1].dtype == torch.float64
    assert hvd.grouped_reducescatter([]) == []


def _exchanges() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        mine = _of(rank, 2 * size, dtype)
        expected = torch.cat([_of(other, 2 * size, dtype)[2 * rank :][:2] for other in range(size)])
        result = hvd.alltoall(mine)
        assert torch.equal(result, expected) and result.dtype == dtype
        received, rows = hvd.synchronize(hvd.alltoall_async(mine, name="x"))
        assert torch.equal(received, expected) and rows.tolist() == [2] * size and rows.dtype == torch.int32
    # Some give nothing to some, and other numbers to others.
    splits = [[(1 + 2 * other + 3 * peer) % 4 for peer in range(size)] for other in range(size)]
    wanted = [splits[other][rank] for other in range(size)]
    expected = torch.cat([_of(other, sum(splits[other])).split(splits[other])[rank] for other in range(size)])
    for given in (splits[rank], torch.tensor(splits[rank]), torch.tensor(splits[rank], dtype=torch.int32)):
        received, rows = hvd.alltoall(_of(rank, sum(splits[rank])), splits=given)
        assert torch.equal(received, expected) and rows.tolist() == wanted
        assert rows.dtype == (given.dtype if isinstance(given, torch.Tensor) else torch.int32)


def _gradients() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    weight = float(rank + 1)
    total = sum(range(1, size + 1))
    # As in Horovod: the average for allgather; for reducescatter the gathered ones, times the ranks for the sum.
    tensor = torch.ones(rank + 1, 3, requires_grad=True)
    (hvd.allgather(tensor) * weight).sum().backward()
    assert torch.equal(tensor.grad, torch.full((rank + 1, 3), total / size))
    scalar = torch.tensor(2.0, requires_grad=True)
    (hvd.allgather(scalar) * weight).sum().backward()
    assert scalar.grad.shape == () and scalar.grad.item() == total / size
    by_rows = torch.cat([torch.full((5,), other + 1.0)[_rows_of(other, 5, size)] for other in range(size)])
    for op, factor in ((hvd.Average, 1.0), (hvd.Sum, size)):
        tensor = torch.ones(5, requires_grad=True)
        (hvd.reducescatter(tensor, op=op) * weight).sum().backward()
        assert torch.equal(tensor.grad, by_rows * factor)
        tensors = [torch.ones(5, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
        first, second = hvd.grouped_reducescatter(tensors, op=op, prescale_factor=2.0)
        ((first * weight).sum() + second.sum()).backward()
        assert torch.equal(tensors[0].grad, by_rows * factor * 2)
        assert torch.equal(tensors[1].grad, torch.full((2, 2), factor * 2.0))
    tensors = [torch.ones(rank, requires_grad=True), torch.ones(2, requires_grad=True)]
    first, second = hvd.grouped_allgather(tensors)
    (first.sum() + (second * weight).sum()).backward()
    assert torch.equal(tensors[0].grad, torch.ones(rank))
    assert torch.equal(tensors[1].grad, torch.full((2,), total / size))
    # A row goes to rank 0, three to rank 1, two to each other.
    splits = [1, 3, 2, 2][:size]
    tensor = torch.ones(sum(splits), requires_grad=True)
    received, _ = hvd.alltoall(tensor, splits=splits)
    (received * weight).sum().backward()
    assert tensor.grad.tolist() == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0][: sum(splits)]
    tensor = torch.ones(2 * size, requires_grad=True)
    (hvd.alltoall(tensor) * weight).sum().backward()
    assert tensor.grad.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0][: 2 * size]
    # The gradient has a gradient.
    tensor = torch.ones(2 * size, requires_grad=True)
    (first,) = torch.autograd.grad(hvd.alltoall(tensor).pow(3).sum(), tensor, create_graph=True)
    first.sum().backward()
    assert torch.equal(tensor.grad, torch.full((2 * size,), 6.0))
    tensor = torch.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        hvd.reducescatter(tensor, op=hvd.Max).sum().backward()


def _objects() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    objects = [{"rank": other, "list": list(range(1000 * other))} for other in range(size)]
    assert hvd.allgather_object(objects[rank]) == objects
    assert hvd.allgather_object(None, name="nothing") == [None] * size
    assert hvd.broadcast_object(objects[rank], 1) == objects[1]


def _disagreements() -> list[str]:
    """What each says of an operation that the ranks do not ask for alike. The session goes on."""
    hvd.init()
    rank = hvd.rank()
    ones = torch.ones(4)
    texts = []
    for call in (
        lambda: hvd.allgather(ones.to(torch.float32 if rank else torch.int32), name="dtype"),
        lambda: hvd.allgather(torch.ones(4, 2 + rank), name="shape"),
        lambda: hvd.reducescatter(torch.ones(4 + rank), name="rows"),
        lambda: hvd.reducescatter(ones, op=hvd.Max if rank else hvd.Sum, name="op"),
        lambda: hvd.reducescatter(ones, prescale_factor=1.0 + rank, name="factor"),
        lambda: hvd.alltoall(ones.double() if rank else ones, name="exchange"),
        lambda: hvd.grouped_allgather([ones, torch.ones(2, 3 - rank)], name="group"),
        lambda: hvd.grouped_allgather([ones] * (1 + rank), name="of many"),
        lambda: hvd.allreduce(ones, op=hvd.Sum, postscale_factor=1.0 + rank, name="scaled"),
    ):
        with pytest.raises(hvd.FailedPreconditionError) as caught:
            call()
        assert isinstance(caught.value, hvd.HorovodInternalError)
        assert "rank 0" in str(caught.value) and "rank 1" in str(caught.value), caught.value
        texts.append(str(caught.value).partition("agree")[2])
        assert hvd.allgather(ones, name="dtype").shape == (8,)
    assert pickle.loads(pickle.dumps(caught.value)).args
    return texts


def _disagreements_check() -> None:
    texts = _disagreements()
    assert "int32" in texts[0] and "float32" in texts[0]
    assert hvd.allgather_object(texts) == [texts] * 2


def _refused() -> None:
    hvd.init()
    rank = hvd.rank()
    ones = torch.ones(4)
    for call, error, text in (
        (lambda: hvd.allgather([1.0]), TypeError, "Tensor"),
        (lambda: hvd.allgather(ones.to_sparse()), ValueError, "sparse"),
        (lambda: hvd.allgather(torch.empty(3, device="meta")), ValueError, "meta"),
        (lambda: hvd.allgather(ones, name=""), ValueError, "name"),
        (lambda: hvd.allgather(ones, process_set=[0]), TypeError, "ProcessSet"),
        (lambda: hvd.allgather(ones.to(torch.float8_e4m3fn)), ValueError, "float8"),
        (lambda: hvd.allgather(ones, priority=1.5), TypeError, "priority"),
        (lambda: hvd.grouped_allgather(ones), TypeError, "list"),
        (lambda: hvd.grouped_allgather([ones, 3]), TypeError, "Tensor"),
        (lambda: hvd.reducescatter(ones, op="sum"), ValueError, "op"),
        (lambda: hvd.reducescatter(ones, op=hvd.Adasum), NotImplementedError, "Adasum"),
        (lambda: hvd.reducescatter(ones, prescale_factor="x"), TypeError, "prescale_factor"),
        (lambda: hvd.reducescatter(ones > 0), ValueError, "bool"),
        (lambda: hvd.reducescatter(ones, compression=3), TypeError, "compression"),
        (lambda: hvd.alltoall(torch.ones(3)), ValueError, "rows"),
        (lambda: hvd.alltoall(ones, splits=[1, 1]), ValueError, "add up"),
        (lambda: hvd.alltoall(ones, splits=[4]), ValueError, "splits"),
        (lambda: hvd.alltoall(ones, splits=[5, -1]), ValueError, "split"),
        (lambda: hvd.alltoall(ones, splits=[]), ValueError, "splits"),
        (lambda: hvd.alltoall(ones, splits=[1.5, 2.5]), TypeError, "splits"),
        (lambda: hvd.alltoall(ones, splits=torch.ones(2)), ValueError, "splits"),
        (lambda: hvd.synchronize(3), TypeError, "handle"),
    ):
        with pytest.raises(error, match=text):
            call()
    # A name that is in flight: the second is refused, the first goes on.
    if rank == 0:
        first = hvd.allgather_async(ones, name="busy")
        with pytest.raises(ValueError, match="busy"):
            hvd.allgather_async(ones, name="busy")
    hvd.barrier()
    if rank == 1:
        first = hvd.allgather_async(ones, name="busy")
    assert hvd.synchronize(first).shape == (8,)
    # A group one of which is refused: none of it is in flight.
    with pytest.raises(ValueError, match="float8"):
        hvd.grouped_allgather([ones, ones.to(torch.float8_e4m3fn)], name="half")
    assert len(hvd.grouped_allgather([ones, ones], name="half")) == 2


def _before_and_after() -> None:
    ones = torch.ones(2)
    calls = [
        lambda: hvd.allgather(ones),
        lambda: hvd.reducescatter(ones),
        lambda: hvd.alltoall(ones),
        lambda: hvd.grouped_allgather([ones]),
        lambda: hvd.allgather_object(1),
        lambda: hvd.add_process_set([0]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="init"):
            call()
    hvd.init()
    kept = hvd.allgather(ones)
    hvd.shutdown()
    for call in calls:
        with pytest.raises(ValueError, match="init"):
            call()
    assert kept.sum() == 4, "results outlive the session"
    hvd.init()


BODIES = [
    _gathers,
    _reduces_and_scatters,
    _exchanges,
    _gradients,
    _objects,
    _disagreements_check,
    _refused,
    _before_and_after,
]


@pytest.mark.parametrize("body", BODIES)
def test_two_workers(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


# Of any number of workers.
OF_ANY_SIZE = [_gathers, _reduces_and_scatters, _exchanges, _gradients, _objects]


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (4, 0)])
def test_with_more_workers(run_bodies: Callable[..., Outcomes], workers: int, servers: int) -> None:
    outcomes = run_bodies(OF_ANY_SIZE, workers, servers)
    for body in OF_ANY_SIZE:
        outcomes.check(body)


def test_alone(alone: None) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    for result in (hvd.allgather(tensor), hvd.reducescatter(tensor), hvd.alltoall(tensor)):
        assert torch.equal(result, tensor) and result.data_ptr() != tensor.data_ptr()
    received, rows = hvd.alltoall(tensor, splits=[2])
    assert rows.tolist() == [2] and torch.equal(received, tensor)
    hvd.allgather(tensor).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(2, 3))
    assert hvd.allgather_object("x") == ["x"]
