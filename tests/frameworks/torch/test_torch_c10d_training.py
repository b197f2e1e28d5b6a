"""BytePS under torch.distributed: what trains over its backend, and the communication hook."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from ddp_runs import Model, same, train
from fsdp_runs import require_fsdp2, train_sharded
from jobs import Outcomes
from process_group import begin, end
from torch import nn


def _ddp_three_ways() -> None:
    """torch's DDP over Gloo, over this backend, with the hook, and our own: the same bits."""
    end()
    dist.init_process_group("gloo", init_method="byteps://")
    torch.set_num_threads(1)
    torch.manual_seed(5 + dist.get_rank())
    model = Model()
    for no_sync in (False, True):
        expected = train(nn.parallel.DistributedDataParallel(copy.deepcopy(model)), no_sync=no_sync)
        hooked = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        hooked.register_comm_hook(None, bps.comm_hook)
        assert same(train(hooked, no_sync=no_sync), expected), "hook"
        ours = bps.parallel.DistributedDataParallel(copy.deepcopy(model))
        assert same(train(ours, no_sync=no_sync), expected), "byteps.torch.parallel"
    many = nn.parallel.DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.001)
    many.register_comm_hook(bps.CommHookState(bps.Compression.none), bps.comm_hook)
    assert same(train(many, no_sync=True), expected), "several buckets"
    half = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    half.register_comm_hook(bps.CommHookState(bps.Compression.bf16), bps.comm_hook)
    assert all(torch.allclose(a.float(), b.float(), atol=0.1) for a, b in zip(train(half, no_sync=True), expected))
    with pytest.raises(TypeError, match="CommHookState"):
        bps.comm_hook("what", None)
    end()

    dist.init_process_group("byteps", init_method="byteps://")
    over = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    assert same(train(over, no_sync=True), expected), "backend"
    static = nn.parallel.DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True, static_graph=True)
    assert same(train(static), train(nn.parallel.DistributedDataParallel(copy.deepcopy(model))))
    end()


def _tensors_and_fsdp() -> None:
    """What stands on a backend: distributed tensors, and FSDP2 on the CPU."""
    tensors = require_fsdp2()
    _, size = begin()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    square = torch.arange(16.0).view(4, 4)
    sharded = tensors.distribute_tensor(square, mesh, [tensors.Shard(0)])
    assert torch.equal((sharded @ sharded).full_tensor(), square @ square)
    train_sharded(mesh, partial(torch.optim.SGD, lr=0.1), 1e-6)
    end()


def _checkpointed() -> None:
    """torch.distributed.checkpoint, which asks for a backend of the CPU."""
    rank, _ = begin()
    from torch.distributed import checkpoint

    names: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    folder = Path(str(names[0]))
    try:
        states = {"shared": torch.arange(4.0), "own": {"rank": torch.full((3,), float(rank))}}
        checkpoint.save({"state": states}, checkpoint_id=folder / "saved")
        checkpoint.async_save({"state": states}, checkpoint_id=folder / "later").result()
        for name in ("saved", "later"):
            loaded = {"state": {"shared": torch.zeros(4), "own": {"rank": torch.zeros(3)}}}
            checkpoint.load(loaded, checkpoint_id=folder / name)
            assert torch.equal(loaded["state"]["shared"], torch.arange(4.0))  # type: ignore[arg-type]
    finally:
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    end()


def _compiled() -> None:
    rank, size = begin()
    import torch.distributed._functional_collectives as functional

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    @torch.compile(backend="aot_eager", fullgraph=True)
    def moved(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = functional.all_gather_tensor(tensor * 2, 0, dist.group.WORLD)
        scattered = functional.reduce_scatter_tensor(gathered + 1, "sum", 0, dist.group.WORLD)
        exchanged = functional.all_to_all_single(tensor + 10, splits[1], splits[0], dist.group.WORLD)
        return gathered + 1, scattered * 3, exchanged - 10

    expected = 2.0 * sum(range(size)) + 1
    rows = [1, 3] if rank == 0 else [2, 2]
    splits = rows, [[1, 2], [3, 2]][rank]
    for turn in range(2):
        assert torch.equal(program(torch.full((3,), float(rank))), torch.full((3,), expected))
        inputs = [torch.arange(4.0) + 100 * other + turn for other in range(size)]
        gathered, scattered, exchanged = moved(inputs[rank])
        whole = torch.cat(inputs) * 2 + 1
        assert torch.equal(gathered, whole)
        assert torch.equal(scattered, whole[4 * rank :][:4] * size * 3)
        assert torch.equal(exchanged, torch.cat([inputs[0].split([1, 3])[rank], inputs[1].split([2, 2])[rank]]))
    end()


BODIES = [_ddp_three_ways, _tensors_and_fsdp, _checkpointed, _compiled]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
