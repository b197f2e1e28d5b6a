"""Tensors in memory of BytePS's own: bps.empty, byteps.buffer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps
import byteps.torch as bps
from byteps.torch.memory import Arena

RunWorkers = Callable[..., Any]


def _mapped() -> int:
    """How many of the buffers that others can see this process has."""
    with open("/proc/self/maps") as maps:
        return sum("byteps-buffer" in line for line in maps)


@pytest.mark.usefixtures("alone")
class TestAlone:
    """What needs no others."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
    def test_shapes_and_dtypes(self, dtype: torch.dtype) -> None:
        for tensor in (bps.empty(3, 4, dtype=dtype), bps.empty((3, 4), dtype=dtype), bps.empty([3, 4], dtype=dtype)):
            assert tensor.shape == (3, 4) and tensor.dtype == dtype and tensor.is_contiguous()
            assert torch.equal(tensor, torch.zeros(3, 4, dtype=dtype))
            tensor.fill_(7)
            assert torch.equal(tensor, torch.full((3, 4), 7, dtype=dtype))
        assert bps.empty(torch.Size([2, 5])).dtype == torch.get_default_dtype()
        assert bps.empty(()).shape == () and bps.empty(0, 3).shape == (0, 3)
        assert bps.empty(5, requires_grad=True).requires_grad
        like = bps.empty_like(torch.ones(2, 3, dtype=dtype))
        assert like.shape == (2, 3) and like.dtype == dtype

    def test_it_is_a_tensor_as_any(self) -> None:
        parameter = torch.nn.Parameter(bps.empty(100, 100))
        (parameter.sum() * 2).backward()
        assert parameter.grad is not None and parameter.grad[0, 0].item() == 2
        view = bps.empty(10, 10)[3:5]
        gc.collect()
        view.fill_(1)
        assert view.sum().item() == 20

    def test_in_and_out_of_place(self) -> None:
        tensor, output = bps.empty(300_000), bps.empty(300_000)
        tensor.fill_(3)
        assert torch.equal(bps.push_pull_inplace(tensor, name="a"), torch.full((300_000,), 3.0))
        assert bps.synchronize(bps.push_pull_async_into(tensor, output, name="a")) is output
        assert torch.equal(output, tensor)
        with pytest.raises(ValueError, match="shape"):
            bps.push_pull_async_into(tensor, output[:5], name="a")

    def test_a_dropped_tensor_stays_until_its_operation_has_ended(self) -> None:
        for number in range(50):
            tensor = bps.empty(300_000)
            tensor.fill_(number)
            bps.push_pull_async_inplace(tensor, name=f"dropped.{number}")
            del tensor
        bps.push_pull_inplace(torch.ones(1), name="last")

    def test_numpy(self) -> None:
        numpy = pytest.importorskip("numpy")
        array = numpy.frombuffer(byteps.buffer(4000), dtype=numpy.float32)
        array[:] = 5
        assert array.sum() == 5000 and len(byteps.buffer(17)) == 17
        with pytest.raises(ValueError, match="negative"):
            byteps.buffer(-1)

    @pytest.mark.parametrize("shape", [(-1,), (3, -2), (0, -1)])
    def test_no_extent_is_negative(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="no extent may be negative"):
            bps.empty(*shape)

    def test_more_than_there_is(self) -> None:
        for make in (lambda: bps.empty(2**62), lambda: bps.empty(2**40, 2**40), lambda: byteps.buffer(2**70)):
            with pytest.raises(byteps.ResourceExhaustedError):
                make()

    def test_an_arena_packs(self) -> None:
        arena = Arena(byteps.session.current_session())
        tensors = [arena.empty_like(torch.empty(1000, dtype=dtype)) for dtype in (torch.uint8, torch.float64) * 20]
        for number, tensor in enumerate(tensors):
            tensor.fill_(number)
        assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))
        places = [tensor.data_ptr() for tensor in tensors]
        assert max(places) - min(places) < Arena.CHUNK_BYTES and len(set(places)) == len(places), "one buffer for all"
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors), "and a storage for each"
        assert arena.empty_like(torch.empty(Arena.CHUNK_BYTES)).numel() == Arena.CHUNK_BYTES

    def test_it_outlives_its_session(self) -> None:
        tensor = bps.empty(300_000)
        tensor.fill_(2)
        bps.shutdown()
        assert tensor.sum().item() == 600_000
        with pytest.raises(ValueError, match="init"):
            bps.empty(1)
        bps.init()
        assert bps.push_pull_inplace(tensor, name="again").sum().item() == 600_000


def _between_workers() -> list[int]:
    bps.init()
    rank, size = bps.rank(), bps.size()
    seen = []
    for step in range(6):
        tensor, output = bps.empty(500_000), bps.empty(500_000)
        tensor.fill_(rank + step)
        bps.synchronize(bps.push_pull_async_into(tensor, output, name="x", op=bps.Sum))
        assert torch.equal(output, torch.full((500_000,), float(sum(range(size)) + size * step)))
        bps.push_pull_inplace(output, name="y", op=bps.Average)
        assert output[0].item() == sum(range(size)) + size * step
        seen.append(_mapped())
    return seen


def test_between_workers(run_workers: RunWorkers) -> None:
    for workers in (2, 3):
        for seen in run_workers(_between_workers, workers=workers, servers=0).results:
            # Two of each worker, and those that are on their way out.
            assert seen[0] >= 2 and max(seen) <= 2 * workers * 6
