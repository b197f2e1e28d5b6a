"""BytePS under torch.distributed: groups of some ranks, and meshes of them."""

from __future__ import annotations

import contextlib
import copy
import datetime
from collections.abc import Callable
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from ddp_runs import Model, same, train
from fsdp_runs import require_fsdp2, train_sharded
from process_group import begin, end
from torch import nn


def _groups() -> None:
    """Four ranks: groups of two, of three, of all; what they do at once does not meet."""
    rank, size = begin()
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
    # A barrier that two do not reach names both, and they hear of it when they come.
    for all_ranks in (False, True):
        if rank in (1, 2):
            bps.barrier("the others have waited")
        with pytest.raises(bps.DeadlineExceededError, match=r"not submitted by rank 1 .*, rank 2 "):
            dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=1), wait_all_ranks=all_ranks)
        if rank in (0, 3):
            bps.barrier("the others have waited")
    # A disagreement within a pair is that pair's alone.
    with pytest.raises(bps.FailedPreconditionError, match="agree") if rank % 2 else contextlib.nullcontext():
        dist.all_reduce(torch.ones(2 + (rank == 3)), group=mine)
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == 4
    # Gradients among a pair, by all three ways.
    torch.manual_seed(rank)
    model = Model()
    over = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)
    expected = train(over)
    hooked = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)
    hooked.register_comm_hook(mine, bps.comm_hook)
    assert same(train(hooked), expected)
    assert same(train(bps.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=mine)), expected)
    end()


def _meshes() -> None:
    """Distributed tensors and FSDP2 over a mesh of two by two: replicas of shards."""
    tensors = require_fsdp2()
    begin()
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
    train_sharded(mesh, partial(torch.optim.AdamW, lr=0.01), 1e-5)
    end()


@pytest.mark.parametrize("body", [_groups, _meshes])
def test_with_four(body: Callable[[], None], run_workers: Callable[..., object]) -> None:
    run_workers(body, workers=4, servers=0)
