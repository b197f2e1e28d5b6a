"""push_pull and broadcast of NDArrays, through MXNet's engine.

Asynchronous. A call returns at once. The engine starts the operation when what it reads has been computed, and what
reads its result afterwards waits for it, as for any of MXNet's own operators. None of the engine's threads is held
while a tensor travels. Errors are MXNetError, raised where the result is waited for (`asnumpy()`, `wait_to_read()`,
`mx.nd.waitall()`, `shutdown()`).

Names. Tensors meet by name across the workers, in whichever order. Operations of one name run one after the other, in
the order of the calls on each rank. Operations without a name are numbered, and those alone need the same order on all
ranks.

Arrays. uint8, int8, int16, int32, int64, bool, float16, bfloat16, float32 and float64 in host memory, dense, of MXNet's
classic or NumPy interface. Shape and dtype must agree across ranks, or every rank gets an error. bfloat16 is the dtype
mxnet.contrib.amp.amp.bfloat16: MXNet 1.9 does not know it by a name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from byteps.arguments import priority_number, reduction_fault, root, tensor_name
from byteps.mxnet import library
from byteps.mxnet.compression import Compression, Compressor, check_compression
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Adasum, Average, ReduceOp, Sum, choose_op
from byteps.session import Session, current_session

import mxnet as mx
from mxnet.base import MXNetError

_HOST = ("cpu", "cpu_pinned", "cpu_shared")

# For each name an array that stands for it: operations of one name write it, which makes the engine run them in order.
_TURNS: dict[str, mx.nd.NDArray] = {}


def turn_of(name: str, ranks: tuple[int, ...] = ()) -> mx.nd.NDArray:
    """The array that stands for a name, among the ranks of a set (none: all)."""
    key = f"{','.join(map(str, ranks))}/{name}" if ranks else name
    turn = _TURNS.get(key)
    if turn is None:
        turn = _TURNS.setdefault(key, mx.nd.empty((1,), ctx=mx.cpu()))
    return turn


# What MXNet has for it, as mxnet.contrib.amp.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

_PLAIN = ("uint8", "int8", "int16", "int32", "int64", "bool", "float16", "float32", "float64")
# By what an array says it has: a class, or with the NumPy interface a dtype.
_DTYPES: dict[Any, str] = {
    **{np.dtype(name).type: name for name in _PLAIN},
    **{np.dtype(name): name for name in _PLAIN},
    BFLOAT16: "bfloat16",
}


def dtype_name(tensor: mx.nd.NDArray) -> str:
    """What NumPy calls the data type of an array."""
    dtype = tensor.dtype
    return _DTYPES.get(dtype) or np.dtype(dtype).name


def check_array(tensor: Any) -> None:
    """Refuses what cannot be sent: before an operation has its number, so that those stay alike on all ranks.

    Raises:
        TypeError: no dense NDArray in host memory.
        MXNetError: a dtype that cannot be sent.
    """
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(f"the tensor is {type(tensor).__name__}; it must be an NDArray of MXNet")
    if tensor.stype != "default":
        raise TypeError(f"the tensor is sparse ({tensor.stype}); send tensor.tostype('default')")
    if tensor.context.device_type not in _HOST:
        raise TypeError(f"the tensor is on {tensor.context}; byteps.mxnet sends host memory: as_in_context(mx.cpu())")
    if tensor.dtype not in _DTYPES:
        known = ", ".join((*_PLAIN, "bfloat16"))
        raise MXNetError(f"an array of {dtype_name(tensor)} cannot be sent; convert it to one of {known}")


def check_reduction(op: ReduceOp, tensor: mx.nd.NDArray) -> None:
    """Raises MXNetError for a reduction that has no meaning for the array's data type; when, see check_array()."""
    if fault := reduction_fault(op, dtype_name(tensor)):
        raise MXNetError(fault)


def operation_name(session: Session, kind: str, name: str | None, process_set: ProcessSet = global_process_set) -> str:
    """The name of an operation: the one given, or a number. Raises ValueError."""
    if name is None:
        return f"{kind}.noname.{session.number(kind, process_set.key())}"
    return tensor_name(name)


def set_ranks(process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of a set; none: all. Raises TypeError, ValueError."""
    return () if check_process_set(process_set).native() is None else tuple(process_set.ranks or ())


def _reduce(
    tensor: mx.nd.NDArray, output: mx.nd.NDArray, name: str, op: ReduceOp, priority: int, ranks: tuple[int, ...]
) -> None:
    if ranks or op is Adasum:  # servers sum parts of tensors, of all ranks
        library.all_reduce(tensor, output, turn_of(name, ranks), name, op, priority, ranks)
    else:
        library.push_pull(tensor, output, turn_of(name), name, op, priority)


def add_to_servers(change: mx.nd.NDArray, name: str, priority: int) -> None:
    """Makes of `change` what the servers have of this name with it, in asynchronous training; asynchronous."""
    check_array(change)
    library.add_to_servers(change, change, turn_of(name), name, Sum, priority)


def _send(
    tensor: mx.nd.NDArray, output: mx.nd.NDArray, name: str, root_rank: int, priority: int, ranks: tuple[int, ...]
) -> None:
    if ranks:
        library.set_broadcast(tensor, output, turn_of(name, ranks), name, root_rank, priority, ranks)
    else:
        library.broadcast(tensor, output, turn_of(name), name, root_rank, priority)


def _empty_like(tensor: mx.nd.NDArray) -> mx.nd.NDArray:
    module = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
    return module.empty(tensor.shape, dtype=tensor.dtype, ctx=tensor.context)


def _recorded(tensor: mx.nd.NDArray) -> mx.nd.NDArray:
    """`tensor` as a Function may take it while autograd records. MXNet loses the gradient that a Function has for an
    array with grad_req="add", which does not tell that it is one; what an operator has made of it has that gradient."""
    if tensor.grad is None:
        return tensor
    same = mx.nd.identity(tensor.as_nd_ndarray())
    return same.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else same


class _PushPull(mx.autograd.Function):
    """push_pull for autograd: the gradient of a sum over workers is the sum of the workers' gradients."""

    def __init__(self, op: ReduceOp, name: str, priority: int, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self._arguments = (op, name, priority, ranks)

    def forward(self, tensor: mx.nd.NDArray) -> mx.nd.NDArray:
        """The reduced tensor."""
        op, name, priority, ranks = self._arguments
        output = _empty_like(tensor)
        _reduce(tensor, output, name, op, priority, ranks)
        return output

    def backward(self, gradient: mx.nd.NDArray) -> mx.nd.NDArray:
        """The reduced gradient."""
        op, name, priority, ranks = self._arguments
        if op not in (Sum, Average):
            raise NotImplementedError(f"push_pull with op={op.name} has no gradient; Sum and Average have")
        name = name + ".gradient"
        output = _empty_like(gradient)
        _reduce(gradient, output, name, op, priority, ranks)
        return output


class _Broadcast(mx.autograd.Function):
    """broadcast for autograd: the gradient is the sum of the workers' gradients on the root, and zero on the others.

    Its first argument is an array with a gradient, of one number that nothing uses: MXNet records what such an array
    goes into. So all ranks send a gradient, those included whose tensor has none.
    """

    def __init__(self, root_rank: int, is_root: bool, name: str, priority: int, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self._arguments = (root_rank, name, priority, ranks)
        # Of this session: the engine may call backward() in shutdown(), when there is none to ask any more.
        self._is_root = is_root

    def forward(self, recorded: mx.nd.NDArray | None, tensor: mx.nd.NDArray) -> mx.nd.NDArray:
        """The root's tensor."""
        root_rank, name, priority, ranks = self._arguments
        output = _empty_like(tensor)
        _send(tensor, output, name, root_rank, priority, ranks)
        return output

    def backward(self, gradient: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """A number, and the sum of the gradients on the root."""
        _, name, priority, ranks = self._arguments
        output = _empty_like(gradient)
        _reduce(gradient, output, name + ".gradient", Sum, priority, ranks)
        if not self._is_root:
            output[:] = 0
        # MXNet gives the memory of `gradient` to others when what it asked for has been written. Where that is the
        # number alone, it must come from what is on its way.
        number = output.reshape((-1,))[:1].as_nd_ndarray() if output.size > 0 else mx.nd.zeros((1,))
        return number, output


def push_pull(
    tensor: mx.nd.NDArray,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Reduces `tensor` over all workers into a new array; asynchronous. Under autograd.record() it is differentiable
    for Sum and Average: the gradient is the push_pull of the gradients.

    Args:
        tensor: any shape; see the module for dtypes. The same shape and dtype on all ranks.
        average: with op=None: True for Average, False for Sum.
        name: the same on all ranks; None: numbered.
        version: accepted for compatibility; the library counts the rounds of a tensor itself.
        priority: larger is sooner.
        compression: Compression.none or Compression.fp16.
        op: Sum, Average, Min, Max, Product, BitAnd, BitOr, BitXor or Adasum.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        An array of the same shape, dtype and context; the same bits on all ranks.

    Raises:
        MXNetError: where the result is waited for: what the library says (another rank's shape or dtype differs, a
            member is gone, a deadline). Here: a dtype that cannot be sent, or that the reduction has no meaning for.
        ValueError: before init(), an unknown op, a name that cannot be one.
        TypeError: not a dense NDArray in host memory, a priority that is no whole number, or no compression.
    """
    del version
    check_array(tensor)
    check_compression(compression)
    chosen = choose_op(op, average, adasum=True)
    session = current_session()
    ranks = set_ranks(process_set)
    # All that may fail, before the operation has its number.
    urgency = priority_number(priority)
    sent, context = compression.compress(tensor)
    check_reduction(chosen, sent)
    name = operation_name(session, "push_pull", name, process_set)
    function = _PushPull(chosen, name, urgency, ranks)
    reduced = function(_recorded(sent)) if mx.autograd.is_recording() else function.forward(sent)
    return compression.decompress(reduced, context)


def push_pull_inplace(
    tensor: mx.nd.NDArray,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Reduces `tensor` over all workers into itself and returns it; asynchronous. Otherwise as push_pull, without
    gradient and compression."""
    del version
    check_array(tensor)
    chosen = choose_op(op, average, adasum=True)
    session = current_session()
    ranks = set_ranks(process_set)
    urgency = priority_number(priority)
    check_reduction(chosen, tensor)
    name = operation_name(session, "push_pull", name, process_set)
    _reduce(tensor, tensor, name, chosen, urgency, ranks)
    return tensor


def byteps_push_pull(
    tensor: mx.nd.NDArray, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
) -> mx.nd.NDArray:
    """push_pull_inplace with the arguments that BytePS's users know."""
    return push_pull_inplace(tensor, average=is_average, name=name, version=version, priority=priority)


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Announces a name. Never needed, and in any order: without a shape nothing can be announced yet.

    Raises:
        NotImplementedError: `byteps_...` arguments ask for a compressor of the core, which this release has none of.
        TypeError: other arguments.
    """
    current_session()
    tensor_name(name)
    for key, value in kwargs.items():
        if not key.startswith("byteps_"):
            raise TypeError(f"byteps_declare_tensor() got an unexpected argument {key}")
        raise NotImplementedError(f"{key}={value!r}: this release has no compressors in the core")


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Copies the root's `tensor` into a new array on every rank; asynchronous. Under autograd.record() it is
    differentiable: the root gets the sum of the gradients of all ranks, the others get zeros. So what the ranks call
    backward() of has the result in it on all of them, or on none.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: whose values are sent: a rank of the job, also with a process set.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        process_set: the ranks that take part; the root and this rank are among them.

    Raises:
        MXNetError, TypeError: as push_pull.
        ValueError: before init(), or the root is not a rank, or not one of the set.
    """
    check_array(tensor)
    session = current_session()
    ranks = set_ranks(process_set)
    rank = root(session, root_rank, process_set)
    urgency = priority_number(priority)
    name = operation_name(session, "broadcast", name, process_set)
    function = _Broadcast(rank, session.native.info()["rank"] == rank, name, urgency, ranks)
    if not mx.autograd.is_recording():
        return function.forward(None, tensor)
    recorded = mx.nd.zeros((1,), ctx=tensor.context)
    recorded.attach_grad()
    return function(recorded, _recorded(tensor))


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Copies the root's `tensor` into every rank's, and returns it; asynchronous. Otherwise as broadcast, without
    gradient."""
    check_array(tensor)
    session = current_session()
    ranks = set_ranks(process_set)
    rank = root(session, root_rank, process_set)
    urgency = priority_number(priority)
    name = operation_name(session, "broadcast", name, process_set)
    _send(tensor, tensor, name, rank, urgency, ranks)
    return tensor
