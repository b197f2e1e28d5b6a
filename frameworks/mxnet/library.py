"""libbyteps_mxnet.so: operations on MXNet's engine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from byteps.mxnet import engine  # noqa: F401 - follows the session
from byteps.shim import Shim

import mxnet as mx
from mxnet.base import MXNetError

_ERROR_SIZE = 1024

_SHIM = Shim("mxnet")


def _check_version() -> None:
    numbers = tuple(int(part) for part in mx.__version__.split(".")[:2])
    if numbers != (1, 9):
        raise ImportError(f"byteps.mxnet works with MXNet 1.9; this is {mx.__version__}")


def _bind() -> None:
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    function = _SHIM.library.bps_shim_mxnet_bind
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    if not function(mx.base._LIB._name.encode(), error, _ERROR_SIZE):
        raise ImportError(error.value.decode(errors="replace"))


def _operation(name: str, of_set: bool = False) -> Callable[..., None]:
    function = _SHIM.library[f"bps_shim_mxnet_{name}"]
    ranks_types = [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32] if of_set else []
    function.argtypes = [
        *[ctypes.c_void_p] * 3,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int64,
        *ranks_types,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]

    def push(
        read: mx.nd.NDArray,
        written: mx.nd.NDArray,
        turn: mx.nd.NDArray,
        name: str,
        argument: int,
        priority: int,
        ranks: Sequence[int] = (),
    ) -> None:
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        handles = read.handle, written.handle, turn.handle
        given = ((ctypes.c_int32 * len(ranks))(*ranks), len(ranks)) if of_set else ()
        if not function(*handles, name.encode(), argument, priority, *given, error, _ERROR_SIZE):
            raise MXNetError(f"{name}: {error.value.decode(errors='replace')}")

    return push


class Rows:
    """What an operation brings whose size is not known before; asynchronous: `standing` is written when it has come."""

    def __init__(
        self,
        what: str,
        tensor: mx.nd.NDArray,
        standing: mx.nd.NDArray,
        turn: mx.nd.NDArray,
        name: str,
        op: int = 0,
        priority: int = 0,
        scale: tuple[float, float] = (1.0, 1.0),
        splits: Sequence[int] = (),
        ranks: Sequence[int] = (),
    ) -> None:
        """Pushes the operation, "allgather", "alltoall" or "reducescatter", on the engine. Raises MXNetError."""
        self._rows: int | None = None
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        self._rows = _ROWS(
            what.encode(),
            tensor.handle,
            standing.handle,
            turn.handle,
            name.encode(),
            op,
            priority,
            *scale,
            (ctypes.c_int64 * len(splits))(*splits),
            len(splits),
            (ctypes.c_int32 * len(ranks))(*ranks),
            len(ranks),
            error,
            _ERROR_SIZE,
        )
        if not self._rows:
            raise MXNetError(f"{name}: {error.value.decode(errors='replace')}")

    def address(self) -> int | None:
        """Where the elements are, as long as this object is there; None: there are none."""
        found: int | None = _ROWS_DATA(self._rows)
        return found

    def shape(self) -> tuple[int, ...]:
        """The extents; none also where nothing has come."""
        return self._numbers(_ROWS_SHAPE)

    def splits(self) -> tuple[int, ...]:
        """How many rows came from each rank."""
        return self._numbers(_ROWS_SPLITS)

    def _numbers(self, function: Any) -> tuple[int, ...]:
        count = function(self._rows, None, 0)
        numbers = (ctypes.c_int64 * count)()
        function(self._rows, numbers, count)
        return tuple(numbers)

    def __del__(self) -> None:
        if self._rows:
            _ROWS_FREE(self._rows)


def reduce_scatter(
    tensor: mx.nd.NDArray,
    output: mx.nd.NDArray,
    turn: mx.nd.NDArray,
    name: str,
    op: int,
    priority: int,
    scale: tuple[float, float],
    ranks: Sequence[int],
) -> None:
    """reducescatter into an array of the right shape; asynchronous. Raises MXNetError."""
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    given = (ctypes.c_int32 * len(ranks))(*ranks), len(ranks)
    handles = tensor.handle, output.handle, turn.handle
    if not _REDUCE_SCATTER(*handles, name.encode(), op, priority, *scale, *given, error, _ERROR_SIZE):
        raise MXNetError(f"{name}: {error.value.decode(errors='replace')}")


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = _SHIM.library[f"bps_shim_mxnet_{name}"]
    function.restype = result
    function.argtypes = arguments
    return function


_check_version()
_bind()

_POINTER, _NUMBERS, _TEXT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p
_RANKS = (ctypes.POINTER(ctypes.c_int32), ctypes.c_int32)
_HOW = (_TEXT, ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_double)  # name, op, priority, scale
_ERROR = (ctypes.c_char_p, ctypes.c_size_t)
_ROWS = _function("rows", _POINTER, _TEXT, *[_POINTER] * 3, *_HOW, _NUMBERS, ctypes.c_int32, *_RANKS, *_ERROR)
_ROWS_DATA = _function("rows_data", _POINTER, _POINTER)
_ROWS_SHAPE = _function("rows_shape", ctypes.c_int32, _POINTER, _NUMBERS, ctypes.c_int32)
_ROWS_SPLITS = _function("rows_splits", ctypes.c_int32, _POINTER, _NUMBERS, ctypes.c_int32)
_ROWS_FREE = _function("rows_free", None, _POINTER)
_REDUCE_SCATTER = _function("reduce_scatter", ctypes.c_int, *[_POINTER] * 3, *_HOW, *_RANKS, *_ERROR)

# (input, output, the array that stands for the name, name, op or root, priority); raise MXNetError.
push_pull = _operation("push_pull")
add_to_servers = _operation("add_to_servers")
broadcast = _operation("broadcast")
# The same over the ranks of a set, which are the last argument (none: all); all_reduce has any op.
all_reduce = _operation("all_reduce", of_set=True)
set_broadcast = _operation("set_broadcast", of_set=True)

_SHIM.connect()
