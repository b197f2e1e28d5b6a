"""BytePS under torch.distributed: the backend, DistributedDataParallel over it, and the communication hook."""

from __future__ import annotations

import contextlib
import copy
import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from jobs import DEADLINE, Outcomes, clean_environment
from torch import nn


def _begin() -> tuple[int, int]:
    _end()
    dist.init_process_group("byteps", init_method="byteps://")
    assert dist.get_backend() == "byteps"
    assert (dist.get_rank(), dist.get_world_size()) == (bps.rank(), bps.size())
    torch.set_num_threads(1)
    return dist.get_rank(), dist.get_world_size()


def _end() -> None:
    """Also of what an earlier body has left that failed."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _reductions() -> None:
    rank, _ = _begin()
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
    tensors = [torch.ones(2), torch.full((3,), float(rank))]
    dist.all_reduce_coalesced(tensors) if hasattr(dist, "all_reduce_coalesced") else [
        dist.all_reduce(one) for one in tensors
    ]
    assert tensors[0][0].item() == 2 and tensors[1][0].item() == 1
    with pytest.raises(NotImplementedError, match="SUM, AVG"):
        dist.all_reduce(torch.ones(1), op=dist._make_nccl_premul_sum(2.0))
    _end()


def _gathers() -> None:
    rank, size = _begin()
    tensor = torch.full((2, 3), float(rank))
    dist.broadcast(tensor, src=1)
    assert torch.equal(tensor, torch.ones(2, 3))
    outputs = [torch.empty(3, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(outputs, torch.full((3,), rank))
    assert [output[0].item() for output in outputs] == [0, 1]
    outputs = [torch.empty(1 + other) for other in range(size)]
    dist.all_gather(outputs, torch.full((1 + rank,), float(rank)))
    assert [output.tolist() for output in outputs] == [[0.0], [1.0, 1.0]], "shapes may differ"
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
    _end()


def _exchanges() -> None:
    rank, size = _begin()
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
    _end()


def _coalesced() -> None:
    rank, size = _begin()
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
    _end()


def _functional() -> None:
    """The collectives that compiled programs use find the group by its name."""
    import torch.distributed._functional_collectives as functional

    rank, _ = _begin()
    reduced = functional.all_reduce(torch.full((3,), float(rank)), "sum", dist.group.WORLD)
    assert torch.equal(functional.wait_tensor(reduced), torch.ones(3))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert functional.wait_tensor(gathered).tolist() == [0.0, 0.0, 1.0, 1.0]
    scattered = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, dist.group.WORLD)
    assert functional.wait_tensor(scattered).tolist() == [4.0 * rank, 4.0 * rank + 2]
    _end()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs))))


def _train(model: nn.Module, steps: int = 6, no_sync: bool = False) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rank = dist.get_rank()
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        if no_sync:
            with model.no_sync():
                model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return [value.detach().clone() for value in model.state_dict().values()]


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def _ddp_three_ways() -> None:
    """torch's DDP over Gloo, over this backend, with the hook, and our own: the same bits."""
    _end()
    dist.init_process_group("gloo", init_method="byteps://")
    torch.set_num_threads(1)
    torch.manual_seed(5 + dist.get_rank())
    model = _Model()
    for no_sync in (False, True):
        expected = _train(nn.parallel.DistributedDataParallel(copy.deepcopy(model)), no_sync=no_sync)
        hooked = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        hooked.register_comm_hook(None, bps.comm_hook)
        assert _same(_train(hooked, no_sync=no_sync), expected), "hook"
        ours = bps.parallel.DistributedDataParallel(copy.deepcopy(model))
        assert _same(_train(ours, no_sync=no_sync), expected), "byteps.torch.parallel"
    many = nn.parallel.DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.001)
    many.register_comm_hook(bps.CommHookState(bps.Compression.none), bps.comm_hook)
    assert _same(_train(many, no_sync=True), expected), "several buckets"
    half = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    half.register_comm_hook(bps.CommHookState(bps.Compression.bf16), bps.comm_hook)
    assert all(torch.allclose(a.float(), b.float(), atol=0.1) for a, b in zip(_train(half, no_sync=True), expected))
    with pytest.raises(TypeError, match="CommHookState"):
        bps.comm_hook("what", None)
    _end()

    dist.init_process_group("byteps", init_method="byteps://")
    over = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    assert _same(_train(over, no_sync=True), expected), "backend"
    static = nn.parallel.DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True, static_graph=True)
    assert _same(_train(static), _train(nn.parallel.DistributedDataParallel(copy.deepcopy(model))))
    _end()


def _wrong() -> None:
    _end()
    bps.init()
    rank = bps.rank()
    store = dist.HashStore()
    with pytest.raises(ValueError, match=r"torch\.distributed gives this process rank"):
        dist.init_process_group("byteps", store=store, rank=1 - rank, world_size=2)
    bps.shutdown()
    rank, _ = _begin()
    with pytest.raises(bps.BytePSError, match=r"c10d"):
        dist.all_reduce(torch.ones(2 + rank))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2, "the group goes on"
    with pytest.raises(NotImplementedError, match="give src"):
        dist.recv(torch.ones(1))
    with pytest.raises(ValueError, match=r"destination rank|this rank"):
        dist.send(torch.ones(1), dst=rank)
    with pytest.raises(ValueError, match="tag"):
        dist.send(torch.ones(1), dst=1 - rank, tag=-1)
    for call, text in (
        (lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2)), "elements"),
        (lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.ones(2)), "elements"),
        (lambda: dist.all_to_all([torch.empty(1)], [torch.ones(1)]), "ranks"),
        (lambda: dist.all_reduce(torch.ones(2).expand(3, 2)), "share memory"),
        (lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [2, 1]), r"add up|split"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=text):
            call()
    dtype = torch.float64 if rank else torch.float32
    # The ranks disagree: each is told, and the group goes on.
    for call in (
        lambda: dist.all_gather([torch.empty(2, dtype=dtype)] * 2, torch.ones(2, dtype=dtype)),
        lambda: dist.reduce_scatter_tensor(torch.empty(1 + rank), torch.ones(2 + 2 * rank)),
        lambda: dist.reduce(torch.ones(2), dst=rank),
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM),
        lambda: dist.scatter(torch.ones(1), [torch.ones(1)] * 2, src=rank),
    ):
        with pytest.raises(bps.FailedPreconditionError, match="agree"):
            call()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2
    # More comes than there is room for.
    with pytest.raises(ValueError, match="have come"):
        dist.all_gather([torch.empty(1), torch.empty(2)], torch.ones(2))
    with pytest.raises(ValueError, match="ranks"):
        dist.all_gather([torch.empty(1)], torch.ones(1))
    _end()


def _tensors_and_fsdp() -> None:
    """What stands on a backend: distributed tensors, and FSDP2 on the CPU."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no FSDP2")
    rank, size = _begin()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    square = torch.arange(16.0).view(4, 4)
    sharded = tensors.distribute_tensor(square, mesh, [tensors.Shard(0)])
    assert torch.equal((sharded @ sharded).full_tensor(), square @ square)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    whole = copy.deepcopy(model)
    fsdp.fully_shard(model[0], mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, whole)]
    for step in range(3):
        inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(size)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(inputs[rank]).square().mean().backward()
        (sum(whole(part).square().mean() for part in inputs) / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, expected in zip(model.parameters(), whole.parameters()):
        assert torch.allclose(ours.full_tensor(), expected, atol=1e-6)
    _end()


def _compiled() -> None:
    rank, size = _begin()
    import torch.distributed._functional_collectives as functional

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    expected = 2.0 * sum(range(size)) + 1
    for _ in range(2):
        assert torch.equal(program(torch.full((3,), float(rank))), torch.full((3,), expected))
    _end()


def _aborted() -> None:
    rank, _ = _begin()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert not work.is_completed() and work.exception() is None
        with pytest.raises(bps.DeadlineExceededError):
            work.wait(datetime.timedelta(seconds=0.2))
        dist.group.WORLD.abort()
        with pytest.raises(bps.CancelledError):
            work.wait()
        assert work.is_completed() and not work.is_success() and isinstance(work.exception(), bps.CancelledError)
    else:
        bps.barrier("aborted")
        # The abort and the barrier take different ways. Where the barrier is faster, rank 0's part is here already.
        sums = torch.ones(3)
        try:
            dist.all_reduce(sums)
        except bps.AbortedError as error:
            assert "rank 0" in str(error)
        else:
            assert torch.equal(sums, torch.full((3,), 2.0))
    if rank == 0:
        bps.barrier("aborted")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    _end()


BODIES = [
    _reductions,
    _gathers,
    _exchanges,
    _coalesced,
    _functional,
    _ddp_three_ways,
    _tensors_and_fsdp,
    _compiled,
    _aborted,
    _wrong,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _groups() -> None:
    """Four ranks: groups of two, of three, of all; what they do at once does not meet."""
    rank, size = _begin()
    assert size == 4
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    ranks = [rank % 2, rank % 2 + 2]
    assert (dist.get_rank(mine), dist.get_world_size(mine)) == (ranks.index(rank), 2)
    assert dist.get_process_group_ranks(mine) == ranks and mine.process_set.ranks == ranks
    work = dist.all_reduce(whole := torch.full((3,), float(rank)), async_op=True)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=mine)
    assert tensor[0].item() == sum(ranks)
    work.wait()
    assert whole[0].item() == 6
    dist.broadcast(tensor.fill_(rank), src=ranks[1], group=mine)
    assert tensor[0].item() == ranks[1]
    dist.reduce(tensor.fill_(rank), dst=ranks[1], group=mine)
    assert tensor[0].item() == (sum(ranks) if rank == ranks[1] else rank)
    outputs = [torch.empty(1) for _ in ranks]
    dist.all_gather(outputs, torch.tensor([float(rank)]), group=mine)
    assert [output.item() for output in outputs] == ranks
    dist.gather(torch.tensor([float(rank)]), outputs if rank == ranks[1] else None, dst=ranks[1], group=mine)
    output = torch.empty(1)
    dist.scatter(output, [torch.ones(1), 2 * torch.ones(1)] if rank == ranks[0] else None, src=ranks[0], group=mine)
    assert output.item() == ranks.index(rank) + 1
    dist.reduce_scatter_tensor(output, torch.arange(2.0), group=mine)
    assert output.item() == 2.0 * ranks.index(rank)
    exchanged = torch.empty(2)
    dist.all_to_all_single(exchanged, torch.full((2,), float(rank)), group=mine)
    assert exchanged.tolist() == ranks
    # Two groups of the same ranks, and messages in both under one tag.
    twin = dist.new_group([0, 2]), dist.new_group([1, 3])
    other = ranks[1 - ranks.index(rank)]
    works = [dist.isend(torch.full((1,), 10.0 + k), dst=other, group=g) for k, g in enumerate((mine, twin[rank % 2]))]
    for k, group in reversed(list(enumerate((mine, twin[rank % 2])))):
        dist.recv(output, src=other, group=group)
        assert output.item() == 10.0 + k
    for work in works:
        work.wait()
    found: list[object] = [None, None]
    dist.all_gather_object(found, rank, group=mine)
    assert found == ranks
    dist.barrier(group=mine)
    mine.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    three = dist.new_group([0, 1, 3])
    if rank != 2:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=three)
        assert tensor.item() == 3
    split = dist.group.WORLD.split_group([0, 3])
    assert (split is None) == (rank in (1, 2))
    if split is not None:
        tensor = torch.ones(1)
        split.allreduce([tensor]).wait()
        assert tensor.item() == 2 and split.rank() == (rank == 3)
    # A disagreement within a pair is that pair's alone.
    with pytest.raises(bps.FailedPreconditionError, match="agree") if rank % 2 else contextlib.nullcontext():
        dist.all_reduce(torch.ones(2 + (rank == 3)), group=mine)
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == 4
    # Gradients among a pair, by all three ways.
    torch.manual_seed(rank)
    model = _Model()
    over = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)
    expected = _train(over)
    hooked = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)
    hooked.register_comm_hook(mine, bps.comm_hook)
    assert _same(_train(hooked), expected)
    assert _same(_train(bps.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)), expected)
    _end()


def _meshes() -> None:
    """Distributed tensors and FSDP2 over a mesh of two by two: replicas of shards."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no FSDP2")
    rank, size = _begin()
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    square = torch.arange(64.0).view(8, 8)
    for placements in (
        [tensors.Shard(0), tensors.Shard(1)],
        [tensors.Replicate(), tensors.Shard(0)],
        [tensors.Shard(1), tensors.Replicate()],
    ):
        one = tensors.distribute_tensor(square, mesh, placements)
        assert torch.equal(one.full_tensor(), square)
        assert torch.equal((one @ one).full_tensor(), square @ square)
        moved = one.redistribute(mesh, [tensors.Shard(1), tensors.Shard(0)])
        assert torch.equal(moved.full_tensor(), square)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    whole = copy.deepcopy(model)
    fsdp.fully_shard(model[0], mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, whole)]
    for step in range(3):
        inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(size)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(inputs[rank]).square().mean().backward()
        (sum(whole(part).square().mean() for part in inputs) / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, expected in zip(model.parameters(), whole.parameters()):
        assert torch.allclose(ours.full_tensor(), expected, atol=1e-5)
    _end()


@pytest.mark.parametrize("body", [_groups, _meshes])
def test_with_four(body: Callable[[], None], run_workers: Callable[..., object]) -> None:
    run_workers(body, workers=4, servers=0)


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
    done = subprocess.run(
        [sys.executable, "-c", _BY_ENTRY_POINT],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_under_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2 has the sum" in done.stdout and "rank 1 of 2 has the sum" in done.stdout
