"""push_pull and broadcast of one worker alone: arguments, memory, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from numpy_reduction import DTYPES, make, same_bits

SHAPES = [(), (1,), (0,), (3, 0, 2), (7,), (4, 5, 6)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_contribution_is_the_result(alone: None, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = make(dtype, shape, rank=0)
    given = tensor.clone()
    for op in (bps.Sum, bps.Average, bps.Min, bps.Max, bps.Product):
        result = bps.push_pull(tensor, op=op, name="x")
        assert same_bits(result, given)
        assert result.data_ptr() != tensor.data_ptr() or tensor.numel() == 0
    for root_copy in (bps.broadcast(tensor, 0, name="x"), bps.synchronize(bps.broadcast_async(tensor, 0, name="x"))):
        assert same_bits(root_copy, given)
    assert bps.push_pull_inplace(tensor, name="x") is tensor
    assert bps.broadcast_(tensor, 0, name="x") is tensor
    assert bps.synchronize(bps.byteps_push_pull(tensor, average=False, name="x")) is tensor
    assert same_bits(tensor, given)


def _layouts() -> list[torch.Tensor]:
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    return [
        base.transpose(0, 3),
        base[:, 1:, ::2],
        base.contiguous(memory_format=torch.channels_last),
        base[0, 0, 0, :1].expand(6),
        torch.empty(3, 0).t(),
    ]


@pytest.mark.parametrize("number", range(5))
def test_not_contiguous(alone: None, number: int) -> None:
    tensor = _layouts()[number]
    given = tensor.clone()
    assert torch.equal(bps.push_pull(tensor, name="x"), given)
    assert torch.equal(bps.broadcast(tensor, 0, name="x"), given)
    strides = tensor.stride()
    if 0 in strides and tensor.numel():
        with pytest.raises(ValueError, match="share memory"):
            bps.push_pull_inplace(tensor, name="x")
        with pytest.raises(ValueError, match="share memory"):
            bps.broadcast_(tensor, 0, name="x")
    else:
        assert bps.push_pull_inplace(tensor, name="x") is tensor
        assert bps.broadcast_(tensor, 0, name="x") is tensor
    assert tensor.stride() == strides
    assert torch.equal(tensor, given)


def test_average_and_op() -> None:
    from byteps.reduce_op import choose_op

    assert choose_op(None, True) is bps.Average
    assert choose_op(None, False) is bps.Sum
    assert choose_op(None, None) is bps.Average
    assert choose_op(bps.Average, None) is bps.Average
    assert choose_op(bps.Max, True) is bps.Max
    assert choose_op(4, False) is bps.Product
    for op in (50, "sum", bps.ReduceOp):
        with pytest.raises(ValueError, match="must be one of Sum, Average, Min, Max, Product"):
            choose_op(op, True)
    with pytest.raises(ValueError, match="contradicts"):
        choose_op(bps.Average, False)


def test_a_reduction_in_the_place_of_average(alone: None) -> None:
    tensor = torch.ones(2)
    for call in (bps.push_pull, bps.push_pull_inplace, bps.push_pull_async, bps.allreduce, bps.allreduce_async_):
        with pytest.raises(TypeError, match=r"average is Max; it must be True or False\..*op=Max"):
            call(tensor, bps.Max)
    assert torch.equal(bps.push_pull(tensor), tensor)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_dtypes_that_cannot_be_sent(alone: None, dtype: torch.dtype) -> None:
    tensor = torch.empty(3, dtype=dtype)
    for call in (bps.push_pull, bps.push_pull_async, bps.push_pull_inplace, lambda t: bps.broadcast(t, 0)):
        with pytest.raises(ValueError, match=r"cannot be sent; convert to one of bool, int8, .*bfloat16"):
            call(tensor)


def test_what_is_no_tensor(alone: None) -> None:
    for value in (1.0, [1, 2], None):
        with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
            bps.push_pull(value)
    with pytest.raises(ValueError, match="to_dense"):
        bps.push_pull(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="no values"):
        bps.push_pull(torch.ones(3, device="meta"))


def test_arguments_of_a_wrong_type(alone: None) -> None:
    tensor = torch.ones(3)
    for priority in (1.5, "1", None):
        with pytest.raises(TypeError, match=r"priority is .*; it must be a whole number"):
            bps.push_pull(tensor, name="x", priority=priority)
        with pytest.raises(TypeError, match=r"root_rank is .*; it must be a whole number"):
            bps.broadcast(tensor, priority, name="x")
        with pytest.raises(TypeError, match=r"root_rank is .*; it must be a whole number"):
            bps.broadcast_object(3, priority)
    for compression in (3, None, "fp16", bps.Compression):
        with pytest.raises(TypeError, match="it must be one of Compression's, or have compress and decompress"):
            bps.push_pull(tensor, name="x", compression=compression)
    for optimizer in (None, torch.nn.Linear(1, 1), [tensor]):
        with pytest.raises(TypeError, match=r"it must be a torch\.optim\.Optimizer"):
            bps.DistributedOptimizer(optimizer)
    for priority in (2**63, -(2**63) - 1, 2**64, 10**30):
        with pytest.raises(ValueError, match=r"priority is -?[0-9]+; it must be one of"):
            bps.push_pull(tensor, name="x", priority=priority)
        with pytest.raises(ValueError, match=r"priority is -?[0-9]+; it must be one of"):
            bps.broadcast(tensor, 0, name="x", priority=priority)
    for priority in (2**40, 2**63 - 1, -(2**63)):
        assert torch.equal(bps.push_pull(tensor, name="x", priority=priority), tensor)


@pytest.mark.parametrize("name", ["", 3, b"x"])
def test_wrong_names(alone: None, name: object) -> None:
    with pytest.raises(ValueError, match="not empty"):
        bps.push_pull(torch.ones(1), name=name)
    with pytest.raises(ValueError, match="not empty"):
        bps.declare(name)


def test_a_name_that_is_no_text(alone: None) -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        bps.push_pull(torch.ones(1), name="x\udc80")
    with pytest.raises(ValueError, match="NUL"):
        bps.push_pull(torch.ones(1), name="x\0y")
    with pytest.raises(ValueError, match="4096"):
        bps.push_pull(torch.ones(1), name="x" * 4097)
    for name in ("x" * 4096, "gew\u00e4\U0001f600"):
        assert bps.push_pull(torch.ones(1), name=name).item() == 1


def test_declare(alone: None) -> None:
    tensor = torch.ones(4)
    bps.declare("later")
    bps.declare("later", tensor)
    bps.declare("later", tensor.double())
    assert torch.equal(bps.push_pull(tensor, name="later"), tensor)


def _sgd(tensor: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD([tensor.clone().requires_grad_()], lr=1)


NEED_A_SESSION: dict[str, Callable[[torch.Tensor], object]] = {
    "push_pull": bps.push_pull,
    "push_pull_async_inplace": bps.push_pull_async_inplace,
    "push_pull_async_into": lambda one: bps.push_pull_async_into(one, one.clone()),
    "declare": lambda one: bps.declare("x", one),
    "allreduce": bps.allreduce,
    "allreduce, named": lambda one: bps.allreduce(one, name="x"),
    "allreduce_async_": bps.allreduce_async_,
    "grouped_allreduce": lambda one: bps.grouped_allreduce([one]),
    "sparse_allreduce_async": lambda one: bps.sparse_allreduce_async(one.to_sparse()),
    "allgather": bps.allgather,
    "grouped_allgather": lambda one: bps.grouped_allgather([one]),
    "reducescatter": bps.reducescatter,
    "grouped_reducescatter": lambda one: bps.grouped_reducescatter([one]),
    "alltoall": bps.alltoall,
    "alltoall, split": lambda one: bps.alltoall(one, splits=[1, 2]),
    "broadcast": lambda one: bps.broadcast(one, 0),
    "broadcast_": lambda one: bps.broadcast_(one, 0),
    "broadcast_object": bps.broadcast_object,
    "allgather_object": bps.allgather_object,
    "broadcast_parameters": lambda one: bps.broadcast_parameters({"x": one}, 0),
    "broadcast_optimizer_state": lambda one: bps.broadcast_optimizer_state(_sgd(one)),
    "send_async": lambda one: bps.send_async(one, 1),
    "recv_async": lambda one: bps.recv_async(one, 1),
    "barrier": lambda one: bps.barrier(),
    "join": lambda one: bps.join(),
    "add_process_set": lambda one: bps.add_process_set([0]),
    "empty": lambda one: bps.empty(3),
    "DistributedOptimizer": lambda one: bps.DistributedOptimizer(_sgd(one)),
    "DistributedDataParallel": lambda one: bps.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)),
    "SyncBatchNorm": lambda one: bps.SyncBatchNorm(3)(one.expand(2, 3)),
    "TorchState": lambda one: bps.elastic.TorchState(model=torch.nn.Linear(1, 1)).sync(),
    "size": lambda one: bps.size(),
}


@pytest.mark.parametrize("name", sorted(NEED_A_SESSION))
def test_before_init(name: str) -> None:
    with pytest.raises(ValueError, match=r"call bps\.init\(\) first"):
        NEED_A_SESSION[name](torch.ones(3))


def test_after_shutdown() -> None:
    bps.init()
    bps.shutdown()
    for name, call in NEED_A_SESSION.items():
        with pytest.raises(ValueError, match=r"bps\.init\(\)"):
            call(torch.ones(3))
            pytest.fail(f"{name} has not raised")


def test_handles(alone: None) -> None:
    tensor = torch.ones(1000)
    handle = bps.push_pull_async(tensor, name="handle")
    output = bps.synchronize(handle)
    assert bps.poll(handle)
    assert bps.synchronize(handle) is output
    assert torch.equal(output, tensor)
    assert "handle" in repr(handle)


def test_dropped_handles_leave_nothing(alone: None) -> None:
    tensor = torch.ones(1000)
    output = weakref.ref(bps.push_pull_async_inplace(tensor, name="dropped"))
    gc.collect()
    assert output() is None
    # The memory is let go of with the operation, at the latest when the next one starts.
    alive = weakref.ref(tensor)
    bps.synchronize(bps.push_pull_async(torch.ones(1), name="next"))
    del tensor
    gc.collect()
    assert alive() is None


def test_handles_outlive_shutdown() -> None:
    bps.init()
    handle = bps.push_pull_async(torch.ones(3), name="x")
    output = bps.synchronize(handle)
    late = bps.push_pull_async(torch.ones(3), name="y")
    bps.shutdown()
    assert bps.poll(handle)
    assert bps.synchronize(handle) is output
    # shutdown waits for what was accepted.
    assert torch.equal(bps.synchronize(late), torch.ones(3))


def test_gradients(alone: None) -> None:
    tensor = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for op in (bps.Sum, bps.Average):
        (gradient,) = torch.autograd.grad(bps.push_pull(tensor * tensor, op=op, name="x").sum(), tensor)
        assert torch.equal(gradient, 2 * tensor)
    (gradient,) = torch.autograd.grad(bps.broadcast(tensor * tensor, 0).sum(), tensor)
    assert torch.equal(gradient, 2 * tensor)
    with pytest.raises(NotImplementedError, match="op=Max has no gradient"):
        bps.push_pull(tensor, op=bps.Max).sum().backward()


def test_gradients_of_gradients(alone: None) -> None:
    def function(tensor: torch.Tensor) -> torch.Tensor:
        return bps.push_pull(tensor**3, average=False)

    tensor = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, tensor)
    assert torch.autograd.gradgradcheck(function, tensor)


def test_autograd_sees_that_memory_was_written(alone: None) -> None:
    tensor = torch.ones(3, requires_grad=True)
    other = torch.ones(3)
    product = tensor * other  # keeps `other` for the backward pass
    bps.push_pull_inplace(other, name="x")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fp16_compression(alone: None, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, 1.0 + 2**-12, 1e6, -3.5], dtype=dtype)
    result = bps.push_pull(tensor, compression=bps.Compression.fp16)
    assert result.dtype == dtype
    assert torch.equal(result, tensor.half().to(dtype))
    integers = torch.tensor([2**31 - 1])
    assert torch.equal(bps.push_pull(integers, compression=bps.Compression.fp16), integers)


def test_numbers_of_unnamed_operations(alone: None) -> None:
    session = bps.push_pull.__globals__["current_session"]()
    assert [session.number("kind") for _ in range(3)] == [0, 1, 2]
    assert session.number("other kind") == 0
    assert session.number("kind", process_set="a") == 0
    for _ in range(4096):
        last = session.number("kind")
    assert last == 2, "numbers go round"


def test_what_is_no_handle() -> None:
    with pytest.raises(TypeError, match="not 3"):
        bps.synchronize(3)  # type: ignore[arg-type]
    assert bps.synchronize(None) is None
    with pytest.raises(TypeError, match="not None"):
        bps.poll(None)  # type: ignore[arg-type]
