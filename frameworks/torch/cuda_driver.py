"""What the binding asks of CUDA's driver and not of PyTorch: a stream that PyTorch does not give to anything else."""

from __future__ import annotations

import ctypes
from typing import Any

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for the legacy default stream


def new_stream(index: int) -> int:
    """The handle of a new stream of a GPU in the context that PyTorch uses, which is there. It is never destroyed.
    Raises RuntimeError."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"GPU {index}: {name} of CUDA's driver failed with code {code}")

    device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING), 0)
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
    assert stream.value is not None
    return stream.value
