"""A framework's shared object: kernels that use the session of the process without Python.

    SHIM = Shim("tensorflow")
    module = tf.load_op_library(str(SHIM.path))  # or: SHIM.library["bps_shim_jax_push_pull"]
    SHIM.connect()

It is byteps/lib/libbyteps_<framework>.so, and exports the functions of frameworks/common/shim.h besides its own.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path

from byteps import _native
from byteps.library import LIBRARY
from byteps.session import CURRENT

_ERROR_SIZE = 4096


class Shim:
    """The shared object of one framework. One per framework and process."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.path = Path(__file__).parent / "lib" / f"libbyteps_{framework}.so"
        if not self.path.exists():
            raise ImportError(f"byteps has no part for {framework}: {self.path} does not exist. Install byteps again.")

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The object, loaded; its functions by name."""
        library = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_LOCAL)
        library.bps_shim_attach.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        library.bps_shim_attach.restype = ctypes.c_int
        library.bps_shim_detach.argtypes = [ctypes.c_void_p]
        library.bps_shim_detach.restype = None
        return library

    def connect(self) -> None:
        """From now on its kernels use the session that byteps.init() opens, or has opened."""
        assert self.library is not None  # loaded here, and not by the first init()
        CURRENT.follow(self)

    def attach(self, native: _native.Session) -> None:
        """Of byteps.session.Follower."""
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        if not self.library.bps_shim_attach(LIBRARY.path.encode(), native.address, error, _ERROR_SIZE):
            raise ImportError(f"{self.path} cannot use the BytePS library: {error.value.decode(errors='replace')}")

    def leave(self) -> None:
        """Of byteps.session.Follower. Kernels hold nothing back."""

    def joined(self, native: _native.Session) -> None:
        """Of byteps.session.Follower. As a new session: kernels forget what they have left out."""
        self.attach(native)

    def detach(self, native: _native.Session) -> None:
        """Of byteps.session.Follower."""
        self.library.bps_shim_detach(native.address)
