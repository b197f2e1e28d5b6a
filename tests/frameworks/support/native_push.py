"""push_pull without a framework, through the native module."""

from __future__ import annotations

import ctypes
from typing import Any

import byteps
import byteps.session
from byteps import _native


def push_pull_doubles(name: str, values: list[float]) -> tuple[_native.Request, Any]:
    memory = (ctypes.c_double * len(values))(*values)
    address = ctypes.addressof(memory)
    session = byteps.session.current_session().native
    request = session.push_pull(
        name, _native.FLOAT64, (len(values),), address, address, _native.SUM, buffers=memory, priority=3
    )
    return request, memory
