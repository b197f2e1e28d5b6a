"""libbyteps_mxnet.so: operations on MXNet's engine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

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


_check_version()
_bind()

# (input, output, the array that stands for the name, name, op or root, priority); raise MXNetError.
push_pull = _operation("push_pull")
add_to_servers = _operation("add_to_servers")
broadcast = _operation("broadcast")
# The same over the ranks of a set, which are the last argument (none: all); all_reduce has any op.
all_reduce = _operation("all_reduce", of_set=True)
set_broadcast = _operation("set_broadcast", of_set=True)

_SHIM.connect()
