"""push_pull and broadcast of arrays without a framework: NumPy's, and whatever has the buffer protocol (bytearray,
array.array, memoryview, mmap, ctypes, byteps.buffer) or DLPack (PyTorch, CuPy's pinned memory, and many more).

    mean = byteps.push_pull(gradient, name="gradient")          # a new NumPy array
    byteps.push_pull(gradient, gradient, name="gradient")       # in place

Arrays are used where they are, so they must be in memory of the host, row-major and without gaps. Elements are int8,
int16, int32, int64, uint8, float16, bfloat16, float32, float64, complex64, complex128 or bool; NumPy has its bfloat16
from the package ml_dtypes.
"""

from __future__ import annotations

import math
from typing import Any

from byteps import _native
from byteps.arguments import priority_number, root, tensor_name
from byteps.event_loop import Expectation
from byteps.operation import Operation
from byteps.reduce_op import Adasum, ReduceOp, choose_op
from byteps.session import Session, current_session

_NUMPY_NAMES = {
    _native.INT8: "int8",
    _native.INT16: "int16",
    _native.INT32: "int32",
    _native.INT64: "int64",
    _native.UINT8: "uint8",
    _native.FLOAT16: "float16",
    _native.FLOAT32: "float32",
    _native.FLOAT64: "float64",
    _native.COMPLEX64: "complex64",
    _native.COMPLEX128: "complex128",
    _native.BOOL: "bool",
}
# What NumPy calls the types that can be sent.
DTYPES = (*_NUMPY_NAMES.values(), "bfloat16")


def numpy_dtype(given: Any, memory: _native.Array) -> Any:
    """What NumPy calls the elements of `given`, which lie in `memory`. Raises TypeError."""
    name = _NUMPY_NAMES.get(memory.dtype)
    if name is not None:
        return name
    # NumPy's own, or JAX's, is that of ml_dtypes; that of another library is not one of NumPy's.
    dtype = getattr(given, "dtype", None)
    if type(dtype).__module__.partition(".")[0] != "numpy":
        raise TypeError(
            "NumPy has no bfloat16 without the package ml_dtypes: give an array of that, or (push_pull, broadcast) an "
            "output of the input's type"
        )
    return dtype


def _new_array(given: Any, like: _native.Array) -> Any:
    """A NumPy array of that shape and dtype."""
    dtype = numpy_dtype(given, like)
    try:
        import numpy
    except ImportError:
        raise ValueError(
            "without NumPy there is nothing to return: give an output (the array itself: in place)"
        ) from None
    return numpy.empty(like.shape, dtype)


def _memory(array: Any, output: Any) -> tuple[_native.Array, _native.Array, Any]:
    """What is read, what is written, and the object that is returned."""
    if output is array:
        both = _native.Array(array, writable=True)
        return both, both, array
    read = _native.Array(array, writable=False)
    if output is None:
        output = _new_array(array, read)
    written = _native.Array(output, writable=True)
    if (read.dtype, read.shape) != (written.dtype, written.shape):
        raise ValueError(
            f"the output has shape {written.shape} and dtype {name_of(written)}, "
            f"the input {read.shape} and {name_of(read)}: they must be equal"
        )
    return read, written, output


def _bytes_of(array: _native.Array) -> int:
    bits = array.dtype >> 8 & 0xFF
    return math.prod(array.shape) * bits // 8


def name_of(array: _native.Array) -> str:
    """What NumPy calls the elements of an array."""
    return _NUMPY_NAMES.get(array.dtype, "bfloat16")


def _name(session: Session, kind: str, name: str | None) -> str:
    if name is None:
        return f"{kind}.noname.{session.number(kind)}"
    return tensor_name(name)


def give_back(session: Session, kind: str, name: str) -> None:
    """Has the next unnamed operation of this kind take the number in `name`: this one has not begun."""
    session.give_back(int(name.rpartition(".")[2]), kind)


def start_push_pull(
    session: Session,
    array: Any,
    output: Any,
    name: str | None,
    average: bool,
    op: ReduceOp | int | None,
    priority: int,
    timeout: float | None,
) -> Operation:
    """push_pull_async on a session."""
    chosen = choose_op(op, average, adasum=True)
    read, written, result = _memory(array, output)
    urgency = priority_number(priority)
    unnamed = name is None
    name = _name(session, "push_pull", name)
    expectation = Expectation()
    try:
        if chosen is Adasum:
            asked = _native.Collective(
                _native.ALL_REDUCE,
                name,
                dtype=read.dtype,
                shape=read.shape,
                input=read.address,
                output=written.address,
                output_bytes=_bytes_of(written),
                op=chosen,
                priority=urgency,
                timeout=timeout,
            )
            request = session.native.collective(asked, (read, written), expectation.completions, expectation.token)
            return Operation(request, result, expectation.future)
        request = session.native.push_pull(
            name,
            read.dtype,
            read.shape,
            read.address,
            written.address,
            chosen,
            (read, written),
            urgency,
            timeout,
            expectation.completions,
            expectation.token,
        )
    except BaseException as error:
        expectation.drop()
        if unnamed and isinstance(error, Exception):
            give_back(session, "push_pull", name)
        raise
    return Operation(request, result, expectation.future)


def start_broadcast(
    session: Session,
    array: Any,
    root_rank: int,
    output: Any,
    name: str | None,
    priority: int,
    timeout: float | None,
) -> Operation:
    """broadcast_async on a session."""
    root_rank = root(session, root_rank)
    read, written, result = _memory(array, output)
    urgency = priority_number(priority)
    unnamed = name is None
    name = _name(session, "broadcast", name)
    expectation = Expectation()
    try:
        request = session.native.broadcast(
            name,
            read.dtype,
            read.shape,
            read.address,
            written.address,
            root_rank,
            (read, written),
            urgency,
            timeout,
            expectation.completions,
            expectation.token,
        )
    except BaseException as error:
        expectation.drop()
        if unnamed and isinstance(error, Exception):
            give_back(session, "broadcast", name)
        raise
    return Operation(request, result, expectation.future)


def push_pull_async(
    array: Any,
    output: Any = None,
    *,
    name: str | None = None,
    average: bool = True,
    op: ReduceOp | int | None = None,
    priority: int = 0,
    timeout: float | None = None,
) -> Operation:
    """As push_pull, but returns at once: `operation.wait()`, or `await operation`."""
    return start_push_pull(current_session(), array, output, name, average, op, priority, timeout)


def push_pull(
    array: Any,
    output: Any = None,
    *,
    name: str | None = None,
    average: bool = True,
    op: ReduceOp | int | None = None,
    priority: int = 0,
    timeout: float | None = None,
) -> Any:
    """Reduces an array over all workers, and returns the result: the same bits on every rank.

    Args:
        array: what this worker contributes.
        output: where the result goes: an array of the same shape and dtype, or `array` itself. None: a new NumPy array.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        average: whether the sum is divided by the number of workers.
        op: another reduction; Adasum is of floating-point numbers.
        priority: of several the one with the larger is sooner.
        timeout: seconds, of the whole operation; None means BYTEPS_OP_TIMEOUT.

    Raises:
        TypeError: no array, or elements that cannot be reduced.
        ValueError: before init(); memory with gaps, of a device, read-only where it is written; shapes that differ.
        BytePSError: FailedPreconditionError (the ranks disagree; the session stays usable), AlreadyExistsError (one of
            this name is in flight), DeadlineExceededError (names who did not come), UnavailableError (a member died).
    """
    return push_pull_async(array, output, name=name, average=average, op=op, priority=priority, timeout=timeout).wait()


def broadcast_async(
    array: Any,
    root_rank: int = 0,
    output: Any = None,
    *,
    name: str | None = None,
    priority: int = 0,
    timeout: float | None = None,
) -> Operation:
    """As broadcast, but returns at once: `operation.wait()`, or `await operation`."""
    return start_broadcast(current_session(), array, root_rank, output, name, priority, timeout)


def broadcast(
    array: Any,
    root_rank: int = 0,
    output: Any = None,
    *,
    name: str | None = None,
    priority: int = 0,
    timeout: float | None = None,
) -> Any:
    """Copies the array of one rank to all, and returns the copy.

    Args:
        array: what the root sends; on the other ranks only its shape and dtype count.
        root_rank: who sends.
        output: where the copy goes: an array of the same shape and dtype, or `array` itself. None: a new NumPy array.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        priority: of several the one with the larger is sooner.
        timeout: seconds, of the whole operation; None means BYTEPS_OP_TIMEOUT.

    Raises:
        TypeError, ValueError, BytePSError: as push_pull.
    """
    return broadcast_async(array, root_rank, output, name=name, priority=priority, timeout=timeout).wait()
