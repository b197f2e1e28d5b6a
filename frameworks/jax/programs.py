"""JAX's programs as a follower of the session: what was dispatched in a session runs in that session, and its end tells
of an operation that has failed and that the user's program has not been told of.

JAX raises an operation's error where a result is used, and drops it with a result that is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

import numpy as np
from byteps import _native
from byteps.errors import StatusCode
from byteps.jax import versions
from byteps.session import CURRENT

import jax

_ERROR_SIZE = 4096

# For what XLA does when a program has ended.
_MOST_SECONDS = 10.0


@jax.jit
def _last(array: jax.Array) -> jax.Array:
    return array + 1


def _devices() -> list[Any]:
    """Those that programs with operations run on."""
    devices = list(jax.local_devices())
    if devices[0].platform != "cpu":
        with contextlib.suppress(RuntimeError):  # JAX was told to leave the CPU alone
            devices += jax.local_devices(backend="cpu")
    return devices


class Programs:
    """Of byteps.session.Follower. One per process.

    Args:
        library: libbyteps_jax.so.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._untold = library.bps_shim_jax_untold
        self._untold.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._untold.restype = ctypes.c_int32
        self._told = library.bps_shim_jax_told
        self._told.argtypes = [ctypes.c_char_p]
        self._told.restype = None
        self._settle = library.bps_shim_jax_settle
        self._settle.argtypes = [ctypes.c_double]
        self._settle.restype = None
        self._have_operations = False
        # Errors that come to this thread are not told to the user's program.
        self._asking: int | None = None
        self._watched = versions.watch_errors(self._seen)
        CURRENT.follow(self)

    def have_operations(self) -> None:
        """There are programs with operations from now on."""
        self._have_operations = True

    def _seen(self, text: str) -> None:
        if self._asking != threading.get_ident():
            self._told(text.encode(errors="replace"))

    def attach(self, native: _native.Session) -> None:
        """Of byteps.session.Follower. Nothing: handlers use the shim."""

    def joined(self, native: _native.Session) -> None:
        """Of byteps.session.Follower. Nothing: handlers use the shim."""

    def leave(self) -> None:
        """Waits for the programs that this thread has dispatched. Raises JaxRuntimeError for an operation that failed,
        and whose error has not come to Python."""
        if not self._have_operations:
            return
        self._asking = threading.get_ident()
        try:
            for device in _devices():
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    # It begins when the programs before it have ended.
                    jax.block_until_ready(_last(jax.device_put(np.zeros(1, np.int32), device)))
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.effects_barrier()
        finally:
            self._asking = None
        # XLA's objects must not go, as they do when Python ends, while it still does what it does behind a program.
        self._settle(_MOST_SECONDS)
        text = ctypes.create_string_buffer(_ERROR_SIZE)
        if (code := self._untold(text, _ERROR_SIZE)) and self._watched:
            # (Which is then told.)
            raise jax.errors.JaxRuntimeError(f"{StatusCode(code).name}: {text.value.decode(errors='replace')}")

    def detach(self, native: _native.Session) -> None:
        """Of byteps.session.Follower. Nothing: handlers use the shim."""
