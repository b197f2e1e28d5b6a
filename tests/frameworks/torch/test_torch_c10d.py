"""BytePS under torch.distributed: the collectives and messages of its backend, and how the backend is found."""

from __future__ import annotations

import datetime
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch
import torch.distributed as dist
from jobs import DEADLINE, Outcomes, output_of
from process_group import begin, end


def _reductions() -> None:
    rank, _ = begin()
    for op, expected in (
        (dist.ReduceOp.SUM, 3.0),
        (dist.ReduceOp.AVG, 1.5),
        (dist.ReduceOp.MIN, 1.0),
        (dist.ReduceOp.MAX, 2.0),
        (dist.ReduceOp.PRODUCT, 2.0),
    ):
        tensor = torch.full((5,), 1.0 + rank)
        assert dist.all_reduce(tensor, op=op) is None
        assert torch.equal(tensor, torch.full((5,), expected)), op
    bits = torch.tensor([1 << rank], dtype=torch.int32)
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == 3
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.get_future().wait()[0] is not None and work.wait() and work.is_completed() and work.is_success()
    assert torch.equal(tensor, torch.full((3,), 2.0))
    tensor = torch.full((4,), float(rank))
    dist.reduce(tensor, dst=1)
    assert torch.equal(tensor, torch.full((4,), 1.0 if rank == 1 else 0.0))
    for matrix in (torch.full((2, 3), float(rank)), torch.full((3, 2), float(rank)).t()):
        dist.reduce(matrix, dst=0)
        assert torch.equal(matrix, torch.ones(2, 3))  # the sum at rank 0, its own at rank 1
    tensors = [torch.ones(2), torch.full((3,), float(rank))]
    dist.all_reduce_coalesced(tensors) if hasattr(dist, "all_reduce_coalesced") else [
        dist.all_reduce(one) for one in tensors
    ]
    assert tensors[0][0].item() == 2 and tensors[1][0].item() == 1
    with pytest.raises(NotImplementedError, match="SUM, AVG"):
        dist.all_reduce(torch.ones(1), op=dist._make_nccl_premul_sum(2.0))
    end()


def _asked_for() -> None:
    """What is_completed() says is so: the result is there, without wait()."""
    rank, size = begin()
    outputs = [torch.full((3,), -1.0) for _ in range(size)]
    strided = torch.full((2, 3), float(rank)).t()
    for work in (
        dist.all_gather(outputs, torch.full((3,), float(rank)), async_op=True),
        dist.all_reduce(strided, async_op=True),
    ):
        deadline = time.monotonic() + 60
        while not work.is_completed():
            assert time.monotonic() < deadline
    assert [one.tolist() for one in outputs] == [[float(other)] * 3 for other in range(size)]
    assert torch.equal(strided, torch.full((3, 2), float(sum(range(size)))))
    end()


def _gathers() -> None:
    rank, size = begin()
    tensor = torch.full((2, 3), float(rank))
    dist.broadcast(tensor, src=1)
    assert torch.equal(tensor, torch.ones(2, 3))
    outputs = [torch.empty(3, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(outputs, torch.full((3,), rank))
    assert [output[0].item() for output in outputs] == [0, 1]
    outputs = [torch.empty(1 + other) for other in range(size)]
    dist.all_gather(outputs, torch.full((1 + rank,), float(rank)))
    assert [output.tolist() for output in outputs] == [[0.0], [1.0, 1.0]], "shapes may differ"
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), 10.0 + rank)])
    assert [[one[0].item() for one in outputs] for outputs in lists] == [[0, 10], [1, 11]]
    with pytest.raises(ValueError, match=r"2 inputs were given, and lists of \[2, 1\] outputs"):
        dist.all_gather_coalesced([lists[0], lists[1][:1]], [torch.ones(2), torch.ones(3)])
    whole = torch.empty(size * 3)
    dist.all_gather_into_tensor(whole, torch.arange(3.0) + 10 * rank)
    assert whole.tolist() == [0, 1, 2, 10, 11, 12]
    output = torch.empty(2)
    dist.reduce_scatter_tensor(output, torch.arange(4.0))
    assert output.tolist() == [4 * rank, 4 * rank + 2]
    dist.reduce_scatter(output, [torch.zeros(2), torch.ones(2)])
    assert output.tolist() == [2.0 * rank] * 2
    dist.scatter(output, [torch.zeros(2), torch.ones(2)] if rank == 1 else None, src=1)
    assert output.tolist() == [float(rank)] * 2
    outputs = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), outputs, dst=0)
    assert outputs is None or [one.tolist() for one in outputs] == [[0.0, 0.0], [1.0, 1.0]]
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    listed = [("from", rank)]
    dist.broadcast_object_list(listed, src=1)
    assert listed == [("from", 1)]
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    everybody = dist.new_group([0, 1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=everybody)
    assert tensor.item() == 2
    end()


def _exchanges() -> None:
    rank, size = begin()
    peer = 1 - rank
    output = torch.empty(4)
    dist.all_to_all_single(output, torch.arange(4.0) + 10 * rank)
    assert output.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]
    splits = [[1, 3], [4, 0]]
    got = [splits[other][rank] for other in range(size)]
    rows = torch.full((4, 2), float(rank))
    output = torch.empty(sum(got), 2)
    dist.all_to_all_single(output, rows, got, splits[rank])
    assert output[:, 0].tolist() == [0.0] * got[0] + [1.0] * got[1]
    received = [torch.empty(rank + 1), torch.empty(2, rank + 1, dtype=torch.float32)]
    sent = [torch.full((other + 1,), float(rank)) for other in range(size)]
    if rank == 1:
        sent = [torch.full((2, other + 1), float(rank)) for other in range(size)]
    dist.all_to_all(received, sent)
    assert [one.unique().item() for one in received] == [0.0, 1.0]

    for tag in (0, 7):
        if rank == 0:
            dist.send(torch.arange(3.0) + tag, dst=1, tag=tag)
        else:
            room = torch.empty(3)
            assert dist.recv(room, src=0, tag=tag) == 0
            assert torch.equal(room, torch.arange(3.0) + tag)
    # Both ways at once, received in another order than sent, and into memory with gaps.
    works = [dist.isend(torch.full((2, 2), 10.0 * rank + tag), dst=peer, tag=tag) for tag in (1, 2)]
    rooms = [torch.zeros(2, 4)[:, ::2] for _ in range(2)]
    works += [dist.irecv(room, src=peer, tag=tag) for room, tag in zip(rooms, (2, 1))]
    for work in works:
        work.wait()
    assert [room[0, 0].item() for room in rooms] == [10.0 * peer + 2, 10.0 * peer + 1]
    room = torch.empty(1000)
    operations = [dist.P2POp(dist.isend, torch.full((1000,), float(rank)), peer), dist.P2POp(dist.irecv, room, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert room[0].item() == peer

    found: list[object] = [None] * size
    dist.gather_object({"rank": rank}, found if rank == 1 else None, dst=1)
    assert rank == 0 or found == [{"rank": 0}, {"rank": 1}]
    mine: list[object] = [None]
    dist.scatter_object_list(mine, ["zero", "one"] if rank == 0 else None, src=0)
    assert mine == [["zero", "one"][rank]]
    if rank == 0:
        dist.send_object_list(["a", {"b": 1}], dst=1)
    else:
        objects: list[object] = [None, None]
        dist.recv_object_list(objects, src=0)
        assert objects == ["a", {"b": 1}]
    end()


def _coalesced() -> None:
    rank, size = begin()
    tensors = [torch.full((count,), float(rank)) for count in (1, 1000, 7)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor[0].item() for tensor in tensors] == [1.0] * 3
    outputs = [torch.empty(count * size) for count in (1, 3)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    assert [output.tolist() for output in outputs] == [[0, 1], [0, 0, 0, 1, 1, 1]]
    outputs = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.arange(2.0 * output.numel()))
    assert outputs[1].tolist() == [4.0 * rank, 4.0 * rank + 2]
    group = dist.group.WORLD
    group._start_coalescing()
    first, second = torch.ones(2), torch.ones(3)
    dist.all_reduce(first, async_op=True)
    dist.all_reduce(second, async_op=True)
    group._end_coalescing().wait()
    assert first[0].item() == second[0].item() == size
    # A part of the whole, in its own place, as FSDP does it.
    whole = torch.full((2 * size,), float(rank))
    dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])
    assert whole.tolist() == [0, 0, 1, 1]
    dist.reduce_scatter_tensor(whole[2 * rank : 2 * rank + 2], whole)
    assert whole[2 * rank :][:2].tolist() == [2.0 * rank] * 2
    # Neither side without gaps.
    output = torch.zeros(4, 2).t()
    dist.all_gather_into_tensor(output, torch.arange(8.0).reshape(4, 2).t()[:, ::2] + 100 * rank)
    assert output.tolist() == [[0, 4, 1, 5], [100, 104, 101, 105]]
    end()


def _functional() -> None:
    """The collectives that compiled programs use find the group by its name."""
    import torch.distributed._functional_collectives as functional

    rank, _ = begin()
    reduced = functional.all_reduce(torch.full((3,), float(rank)), "sum", dist.group.WORLD)
    assert torch.equal(functional.wait_tensor(reduced), torch.ones(3))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert functional.wait_tensor(gathered).tolist() == [0.0, 0.0, 1.0, 1.0]
    scattered = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, dist.group.WORLD)
    assert functional.wait_tensor(scattered).tolist() == [4.0 * rank, 4.0 * rank + 2]
    end()


def _callbacks_that_wait() -> None:
    """A callback on a future may wait for the future of another operation, as hooks of torch's own do."""
    rank, size = begin()
    registered = torch.zeros(1)
    if rank == 1:
        byteps.torch.push_pull(registered, name="registered")
    ended = threading.Event()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()

    def doubled(first: Any) -> torch.Tensor:
        return dist.all_reduce(2 * first.value()[0], async_op=True).get_future().wait()[0]

    chained = future.then(doubled)
    chained.add_done_callback(lambda _: ended.set())
    if rank == 0:  # so its callback is not called at once
        byteps.torch.push_pull(registered, name="registered")
    assert ended.wait(DEADLINE / 3), "the callback waits for ever"
    assert torch.equal(chained.value(), torch.full((3,), 2.0 * size * size))
    end()


BODIES = [
    _callbacks_that_wait,
    _reductions,
    _asked_for,
    _gathers,
    _exchanges,
    _coalesced,
    _functional,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


_PROGRAM = """
import byteps.torch
import torch
import torch.distributed as dist

dist.init_process_group("byteps")
tensor = torch.full((3,), float(dist.get_rank()))
dist.all_reduce(tensor)
assert tensor.tolist() == [1.0, 1.0, 1.0], tensor
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has the sum", flush=True)
dist.destroy_process_group()
"""


_BY_ENTRY_POINT = """
from importlib.metadata import entry_points

import torch.distributed as dist

every = entry_points()
group = "torch.distributed.backends"
found = every.get(group, []) if isinstance(every, dict) else every.select(group=group)  # of Python 3.9, and newer
(point,) = [point for point in found if point.name == "byteps"]
register = point.load()
register()
register()  # harmless
assert dist.is_backend_available("byteps")
"""


def test_the_entry_point_of_the_package_registers_it() -> None:
    output_of([sys.executable, "-c", _BY_ENTRY_POINT])


def test_under_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = output_of([*torchrun, str(program)])
    assert "rank 0 of 2 has the sum" in output and "rank 1 of 2 has the sum" in output
