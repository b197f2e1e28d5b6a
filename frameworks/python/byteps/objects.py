"""Broadcast of Python objects."""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any, TypeVar

from byteps import _native
from byteps.arguments import root, tensor_name
from byteps.session import current_session

try:  # pickles lambdas and classes of __main__ too
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

T = TypeVar("T")


def _broadcast_bytes(name: str, data: bytearray, root_rank: int) -> None:
    """Overwrites `data` with the root's; the same length on all ranks."""
    session = current_session()
    view = (ctypes.c_uint8 * len(data)).from_buffer(data)
    address = ctypes.addressof(view)
    session.native.broadcast(name, _native.UINT8, (len(data),), address, address, root_rank, buffers=view).wait()


def broadcast_object(obj: T, root_rank: int = 0, name: str | None = None) -> T:
    """Sends the root's object to every rank, pickled (with cloudpickle, if it is installed).

    Args:
        obj: the object; read on the root alone.
        root_rank: who sends.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.

    Returns:
        On the root `obj` itself, on the others a copy of it.

    Raises:
        BytePSError: see byteps.torch.broadcast.
        ValueError: before init(), the root is not a rank, or the name is empty.
    """
    session = current_session()
    root_rank = root(session, root_rank)
    if name is None:
        name = f"noname.{session.number('broadcast_object')}"
    name = tensor_name(name)
    is_root = session.native.info()["rank"] == root_rank

    payload = bytearray()
    if is_root:
        stream = io.BytesIO()
        pickle_to: Any = _pickler
        pickle_to.dump(obj, stream)
        payload = bytearray(stream.getbuffer())

    length = bytearray(len(payload).to_bytes(8, "little"))
    _broadcast_bytes(f"broadcast_object.{name}.size", length, root_rank)
    if not is_root:
        payload = bytearray(int.from_bytes(length, "little"))
    _broadcast_bytes(f"broadcast_object.{name}.bytes", payload, root_rank)
    return obj if is_root else pickle.loads(payload)
