"""BytePS under torch.distributed: the backend, DistributedDataParallel over it, and the communication hook."""

from __future__ import annotations

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
    with pytest.raises(NotImplementedError, match="groups of all"):
        if rank == 0:
            dist.new_group([0])
        else:
            dist.new_group([1])
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
    for call in (
        lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2)),
        lambda: dist.send(torch.ones(1), dst=1 - rank),
        lambda: dist.recv(torch.ones(1), src=1 - rank),
    ):
        with pytest.raises(NotImplementedError, match="this release"):
            call()
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
        with pytest.raises(bps.AbortedError, match="0"):
            dist.all_reduce(torch.ones(3))
    if rank == 0:
        bps.barrier("aborted")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    _end()


BODIES = [_reductions, _gathers, _functional, _ddp_three_ways, _tensors_and_fsdp, _compiled, _aborted, _wrong]


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
