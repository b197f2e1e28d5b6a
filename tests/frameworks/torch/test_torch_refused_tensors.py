"""Tensors without values (on the device "meta"), sparse ones, and those of data types that cannot be sent: every
operation refuses them before anything is submitted, so a rank that was refused is in step with the others. So it does
with arguments that are wrong on one rank alone."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from byteps.reduce_op import ReduceOp
from byteps.torch import ops
from byteps.torch.compression import Compressor
from jobs import clean_environment, launcher_command, run_job
from torch.testing._internal.two_tensor import TwoTensor

Tensor = torch.Tensor


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape)


# What each operation is called with is one tensor of two rows; the others that it needs are as they should be.
_PLAIN: dict[str, Callable[[Tensor], Any]] = {
    "push_pull": bps.push_pull,
    "push_pull_async": bps.push_pull_async,
    "push_pull_inplace": bps.push_pull_inplace,
    "byteps_push_pull": bps.byteps_push_pull,
    "push_pull_async_into, from": lambda one: bps.push_pull_async_into(one, torch.ones(one.shape)),
    "push_pull_async_into, to": lambda one: bps.push_pull_async_into(torch.ones(one.shape), one),
    "push_pull_group_sync_inplace": lambda one: ops.push_pull_group_sync_inplace(one)[0],
    "allreduce": bps.allreduce,
    "allreduce_": bps.allreduce_,
    "allreduce_async": bps.allreduce_async,
    "allreduce_async_": bps.allreduce_async_,
    "allreduce, scaled": lambda one: bps.allreduce(one, prescale_factor=2.0),
    "allgather": bps.allgather,
    "allgather_async": bps.allgather_async,
    "alltoall": bps.alltoall,
    "alltoall_async": bps.alltoall_async,
    "reducescatter": bps.reducescatter,
    "reducescatter_async": bps.reducescatter_async,
    "broadcast": lambda one: bps.broadcast(one, 1),
    "broadcast_": lambda one: bps.broadcast_(one, 1),
    "broadcast_async": lambda one: bps.broadcast_async(one, 1),
    "broadcast_async_": lambda one: bps.broadcast_async_(one, 1),
    "broadcast_parameters": lambda one: bps.broadcast_parameters([("good", torch.ones(2)), ("last", one)], 1),
    "SyncBatchNorm": lambda one: bps.SyncBatchNorm(3)(one),
    **{
        name: lambda one, name=name: getattr(bps, name)([torch.ones(2), one])
        for name in (
            "grouped_allreduce",
            "grouped_allreduce_",
            "grouped_allreduce_async",
            "grouped_allreduce_async_",
            "grouped_allgather",
            "grouped_allgather_async",
            "grouped_reducescatter",
            "grouped_reducescatter_async",
        )
    },
}

_OF_TORCH: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": dist.all_reduce,
    "all_reduce, several": lambda one: _group().allreduce_coalesced([torch.ones(2), one]).wait(),
    "broadcast": lambda one: dist.broadcast(one, 1),
    "reduce": lambda one: dist.reduce(one, 1),
    "all_gather, from": lambda one: dist.all_gather([torch.empty(2, 3) for _ in range(2)], one),
    "all_gather, to": lambda one: dist.all_gather([torch.empty(2, 3), one], torch.ones(2, 3)),
    "all_gather_into_tensor, from": lambda one: dist.all_gather_into_tensor(torch.empty(4, 3), one),
    "all_gather_into_tensor, to": lambda one: dist.all_gather_into_tensor(one, torch.ones(1, 3)),
    "all_gather_into_tensor, several": lambda one: (
        _group().allgather_into_tensor_coalesced([torch.empty(2), torch.empty(4, 3)], [torch.ones(1), one]).wait()
    ),
    "reduce_scatter, from": lambda one: dist.reduce_scatter(torch.empty(2, 3), [torch.ones(2, 3), one]),
    "reduce_scatter, to": lambda one: dist.reduce_scatter(one, [torch.ones(2, 3) for _ in range(2)]),
    "reduce_scatter_tensor, from": lambda one: dist.reduce_scatter_tensor(torch.empty(1, 3), one),
    "reduce_scatter_tensor, to": lambda one: dist.reduce_scatter_tensor(one, torch.ones(4, 3)),
    "reduce_scatter_tensor, several": lambda one: (
        _group().reduce_scatter_tensor_coalesced([torch.empty(1), torch.empty(1, 3)], [torch.ones(2), one]).wait()
    ),
    "gather, to": lambda one: dist.gather(
        torch.ones(2, 3), [torch.empty(2, 3), one] if dist.get_rank() == 0 else None, dst=0
    ),
    "gather, from": lambda one: dist.gather(
        one, [torch.empty(2, 3) for _ in range(2)] if dist.get_rank() == 1 else None, dst=1
    ),
    "scatter, from": lambda one: dist.scatter(
        torch.empty(2, 3), [torch.ones(2, 3), one] if dist.get_rank() == 0 else None, src=0
    ),
    "scatter, to": lambda one: dist.scatter(
        one, [torch.ones(2, 3) for _ in range(2)] if dist.get_rank() == 1 else None, src=1
    ),
    "all_to_all, from": lambda one: dist.all_to_all([torch.empty(2, 3) for _ in range(2)], [torch.ones(2, 3), one]),
    "all_to_all, to": lambda one: dist.all_to_all([torch.empty(2, 3), one], [torch.ones(2, 3) for _ in range(2)]),
    "all_to_all_single, from": lambda one: dist.all_to_all_single(torch.empty(2, 3), one),
    "all_to_all_single, to": lambda one: dist.all_to_all_single(one, torch.ones(2, 3)),
    "send": lambda one: dist.send(one, 1) if dist.get_rank() == 0 else dist.recv(torch.empty(2, 3), 0),
    "recv": lambda one: dist.recv(one, 1) if dist.get_rank() == 0 else dist.send(torch.ones(2, 3), 0),
}

OPERATIONS = {**_PLAIN, **{f"torch.distributed {name}": call for name, call in _OF_TORCH.items()}}
BAD: dict[str, Callable[[], Tensor]] = {
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "sparse": lambda: torch.ones(2, 3).to_sparse(),
    "sparse_csr": lambda: torch.ones(2, 3).to_sparse_csr(),
    "float8": lambda: torch.ones(2, 3).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.ones(2, 3).to(torch.uint16),
    "two tensors": lambda: TwoTensor(torch.ones(2, 3), torch.ones(2, 3)),
}
MESSAGES = {
    "meta": "meta",
    "sparse": "sparse",
    "sparse_csr": "sparse",
    "float8": "float8_e4m3fn",
    "uint16": "uint16",
    "two tensors": "TwoTensor has no memory of its own",
}

# What is wrong about each of them, and the same without it.
_ONES, _PAIR, _WHOLE = torch.ones(2, 3), torch.ones(2), torch.ones(2, dtype=torch.int64)


class _Failing(Compressor):
    """Fails before anything is sent."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        raise ValueError("it cannot be compressed")

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


def _step(some_names: bool) -> None:
    """A step of an optimizer of two parameters without names, or with a name for one of them."""
    model = torch.nn.Linear(2, 1)
    names = list(model.named_parameters())[:1] if some_names else None
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "alltoall, more rows": (lambda: bps.alltoall(_PAIR, splits=[1, 2]), lambda: bps.alltoall(_PAIR, splits=[1, 1])),
    "alltoall, fewer than nothing": (lambda: bps.alltoall(_PAIR, [3, -1]), lambda: bps.alltoall(_PAIR, [1, 1])),
    "alltoall, three rows": (lambda: bps.alltoall(torch.ones(3)), lambda: bps.alltoall(_PAIR)),
    "alltoall_async, one split": (
        lambda: bps.alltoall_async(_PAIR, [2]),
        lambda: bps.alltoall_async(_PAIR, [1, 1]).synchronize(),
    ),
    "torch.distributed all_to_all_single": (
        lambda: dist.all_to_all_single(torch.empty(2), _PAIR, [1, 1], [2, 1]),
        lambda: dist.all_to_all_single(torch.empty(2), _PAIR, [1, 1], [1, 1]),
    ),
    "torch.distributed allreduce_coalesced, the second": (
        lambda: _group().allreduce_coalesced([torch.ones(2), torch.ones(2).expand(3, 2)]).wait(),
        lambda: _group().allreduce_coalesced([torch.ones(2), torch.ones(3, 2)]).wait(),
    ),
    "torch.distributed all_gather_into_tensor, the second": (
        lambda: _group().allgather_into_tensor_coalesced([torch.empty(2), torch.empty(3)], [torch.ones(1)] * 2).wait(),
        lambda: _group().allgather_into_tensor_coalesced([torch.empty(2), torch.empty(2)], [torch.ones(1)] * 2).wait(),
    ),
    "torch.distributed all_gather_into_tensor, of two into one": (
        lambda: _group().allgather_into_tensor_coalesced([torch.empty(2)], [torch.ones(1)] * 2).wait(),
        lambda: _group().allgather_into_tensor_coalesced([torch.empty(2)], [torch.ones(1)]).wait(),
    ),
    "torch.distributed reduce_scatter_tensor, the second": (
        lambda: (
            _group()
            .reduce_scatter_tensor_coalesced([torch.empty(1), torch.empty(1).double()], [torch.ones(2)] * 2)
            .wait()
        ),
        lambda: _group().reduce_scatter_tensor_coalesced([torch.empty(1), torch.empty(1)], [torch.ones(2)] * 2).wait(),
    ),
    "allreduce of flags": (lambda: bps.allreduce(_PAIR > 0), lambda: bps.allreduce(_PAIR)),
    "grouped_allreduce, scaled flags": (
        lambda: bps.grouped_allreduce([_PAIR, _PAIR > 0], op=bps.Sum, prescale_factor=2.0),
        lambda: bps.grouped_allreduce([_PAIR, _PAIR]),
    ),
    "reducescatter of flags": (lambda: bps.reducescatter(_PAIR > 0), lambda: bps.reducescatter(_PAIR)),
    "broadcast, no such root": (lambda: bps.broadcast(_PAIR, 2), lambda: bps.broadcast(_PAIR, 1)),
    "broadcast_object, no such root": (lambda: bps.broadcast_object(1, -1), lambda: bps.broadcast_object(1, 1)),
    "allgather_object, not to be pickled": (
        lambda: bps.allgather_object(threading.Lock()),
        lambda: bps.allgather_object(1),
    ),
    "push_pull, Adasum of integers": (
        lambda: bps.push_pull(_WHOLE, op=bps.Adasum),
        lambda: bps.push_pull(_PAIR, op=bps.Adasum),
    ),
    "push_pull_async, average of flags": (
        lambda: bps.push_pull_async(_WHOLE > 0),
        lambda: bps.push_pull_async(_PAIR).synchronize(),
    ),
    "push_pull_async_inplace, priority": (
        lambda: bps.push_pull_async_inplace(_PAIR.clone(), priority=1.5),
        lambda: bps.push_pull_async_inplace(_PAIR.clone(), priority=1).synchronize(),
    ),
    "allreduce, Adasum of integers": (
        lambda: bps.allreduce(_WHOLE, op=bps.Adasum),
        lambda: bps.allreduce(_PAIR, op=bps.Adasum),
    ),
    "allreduce_async, Max of complex numbers": (
        lambda: bps.allreduce_async(_PAIR.to(torch.complex64), op=bps.Max),
        lambda: bps.allreduce_async(_PAIR, op=bps.Max).synchronize(),
    ),
    "allreduce_async_, bits of floats": (
        lambda: bps.allreduce_async_(_PAIR.clone(), op=ReduceOp.BitOr),
        lambda: bps.allreduce_async_(_WHOLE.clone(), op=ReduceOp.BitOr).synchronize(),
    ),
    "grouped_allreduce, Adasum of integers": (
        lambda: bps.grouped_allreduce([_PAIR, _WHOLE], op=bps.Adasum),
        lambda: bps.grouped_allreduce([_PAIR, _PAIR], op=bps.Adasum),
    ),
    "grouped_allreduce_async, Min of complex numbers": (
        lambda: bps.grouped_allreduce_async([_PAIR, _PAIR.to(torch.complex64)], op=bps.Min),
        lambda: bps.grouped_allreduce_async([_PAIR, _PAIR], op=bps.Min).synchronize(),
    ),
    "reducescatter, Max of complex numbers": (
        lambda: bps.reducescatter(_PAIR.to(torch.complex64), op=bps.Max),
        lambda: bps.reducescatter(_PAIR, op=bps.Max),
    ),
    "reducescatter, cannot be compressed": (
        lambda: bps.reducescatter(_PAIR, compression=_Failing),
        lambda: bps.reducescatter(_PAIR),
    ),
    **{
        f"{name}, priority": (
            lambda call=call: call(priority="high"),
            lambda call=call: getattr(result := call(priority=1), "synchronize", lambda: result)(),
        )
        for name, call in {
            "push_pull": partial(bps.push_pull, _PAIR),
            "allreduce": partial(bps.allreduce, _PAIR),
            "allreduce_async_": lambda priority: bps.allreduce_async_(_PAIR.clone(), priority=priority),
            "grouped_allreduce": partial(bps.grouped_allreduce, [_PAIR, _PAIR]),
            "grouped_allreduce_async": partial(bps.grouped_allreduce_async, [_PAIR, _PAIR]),
            "allgather": partial(bps.allgather, _PAIR),
            "grouped_allgather_async": partial(bps.grouped_allgather_async, [_PAIR, _PAIR]),
            "alltoall": partial(bps.alltoall, _PAIR),
            "reducescatter_async": partial(bps.reducescatter_async, _PAIR),
            "broadcast": partial(bps.broadcast, _PAIR, 1),
            "broadcast_async": partial(bps.broadcast_async, _PAIR, 1),
            "sparse_allreduce_async": partial(bps.sparse_allreduce_async, torch.eye(2).to_sparse()),
        }.items()
    },
    "DistributedOptimizer, names of some": (lambda: _step(some_names=True), lambda: _step(some_names=False)),
    "declare, float8": (
        lambda: bps.declare("given", _ONES.to(torch.float8_e4m3fn)),
        lambda: bps.push_pull(_ONES, name="given"),
    ),
}


SPARSE: dict[str, Callable[[], Tensor]] = {
    "meta": lambda: torch.ones(2, 3).to_sparse().to("meta"),
    "dense": lambda: torch.ones(2, 3),
    "uint16": lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 3).to(torch.uint16), (2, 3)),
}


def _refused_on_rank_0() -> dict[tuple[str, str], str | None]:
    """What went wrong, by operation and kind of tensor. Rank 0 is refused, and then all do the same without a name: if
    anything were on its way, or a number used up, the ranks would not meet."""
    dist.init_process_group("byteps", init_method="byteps://")
    rank = bps.rank()
    found: dict[tuple[str, str], str | None] = {}
    for name, call in OPERATIONS.items():
        for kind, make in BAD.items():
            found[name, kind] = None
            try:
                if rank == 0:
                    with pytest.raises(ValueError, match=MESSAGES[kind]):
                        call(make())
                result = call(torch.full((2, 3), 1.0 + rank))
                if hasattr(result, "synchronize"):
                    result.synchronize()
            except BaseException:
                found[name, kind] = traceback.format_exc()
    for name, (wrong, right) in ARGUMENTS.items():
        found[name, ""] = None
        try:
            if rank == 0:
                with pytest.raises((ValueError, TypeError)):
                    wrong()
            right()
        except BaseException:
            found[name, ""] = traceback.format_exc()
    # Sparse tensors have an operation of their own, which needs their values.
    sparse = bps.sparse_allreduce_async
    for kind, make in SPARSE.items():
        found["sparse_allreduce_async", kind] = None
        try:
            if rank == 0:
                with pytest.raises(ValueError, match="layout" if kind == "dense" else kind):
                    sparse(make())
            assert torch.equal(sparse(torch.ones(2, 3).to_sparse())().to_dense(), torch.ones(2, 3))
        except BaseException:
            found["sparse_allreduce_async", kind] = traceback.format_exc()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], str | None]]:
    """What each rank has found."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="60")
    folder = tmp_path_factory.mktemp("job")
    return run_job(folder, launcher_command(2, 1), 2, [_refused_on_rank_0], (), environment, check=True).results


@pytest.mark.parametrize("kind", sorted(BAD))
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_refused_before_anything_is_submitted(
    refusals: list[dict[tuple[str, str], str | None]], name: str, kind: str
) -> None:
    for rank, found in enumerate(refusals):
        assert found[name, kind] is None, f"rank {rank}: {found[name, kind]}"


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_wrong_arguments_of_one_rank(refusals: list[dict[tuple[str, str], str | None]], name: str) -> None:
    for rank, found in enumerate(refusals):
        assert found[name, ""] is None, f"rank {rank}: {found[name, '']}"


@pytest.mark.parametrize("kind", sorted(SPARSE))
def test_sparse_reductions(refusals: list[dict[tuple[str, str], str | None]], kind: str) -> None:
    for rank, found in enumerate(refusals):
        assert found["sparse_allreduce_async", kind] is None, f"rank {rank}: {found['sparse_allreduce_async', kind]}"


def _root_outside_of_the_set() -> None:
    """Rank 0 names a root that is a rank of the job, but not of the set."""
    bps.init()
    pair = bps.add_process_set([0, 1])
    if bps.rank() < 2:
        value = torch.tensor([bps.rank()])
        for call in (
            lambda root: bps.broadcast(value, root, process_set=pair),
            lambda root: bps.broadcast_(value.clone(), root, process_set=pair),
            lambda root: bps.broadcast_async(value, root, process_set=pair).synchronize(),
            lambda root: bps.broadcast_object(bps.rank(), root, process_set=pair),
        ):
            if bps.rank() == 0:
                with pytest.raises(ValueError, match=r"root_rank is 2; the process set has ranks 0, 1"):
                    call(2)
            assert call(1) == 1
    bps.shutdown()


def test_a_root_outside_of_the_process_set(run_workers: Callable[..., Any]) -> None:
    run_workers(_root_outside_of_the_set, workers=3, servers=0, BYTEPS_OP_TIMEOUT="60")


def test_a_declaration_needs_no_values(alone: None) -> None:
    bps.declare("x", torch.empty(2, 3, device="meta"))
    assert torch.equal(bps.push_pull(torch.ones(2, 3), name="x"), torch.ones(2, 3))
