"""Python objects, sent to other ranks."""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any, TypeVar

from byteps import _native
from byteps.arguments import root, tensor_name
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.session import current_session

try:  # pickles lambdas and classes of __main__ too
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

T = TypeVar("T")


def _pickled(obj: Any) -> bytearray:
    stream = io.BytesIO()
    pickle_to: Any = _pickler
    pickle_to.dump(obj, stream)
    return bytearray(stream.getbuffer())


def _name(kind: str, name: str | None, process_set: ProcessSet) -> str:
    return f"noname.{current_session().number(kind, process_set.key())}" if name is None else tensor_name(name)


def _broadcast_bytes(name: str, data: bytearray, root_rank: int, process_set: ProcessSet) -> None:
    """Overwrites `data` with the root's; the same length on all ranks."""
    view = (ctypes.c_uint8 * len(data)).from_buffer(data)
    address = ctypes.addressof(view)
    operation = _native.Collective(
        _native.BROADCAST,
        name,
        dtype=_native.UINT8,
        shape=(len(data),),
        input=address,
        output=address,
        output_bytes=len(data),
        root=root_rank,
        process_set=process_set.native(),
    )
    current_session().native.collective(operation, view).wait()


def broadcast_object(
    obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T:
    """Sends the root's object to every rank, pickled (with cloudpickle, if it is installed).

    Args:
        obj: the object; read on the root alone.
        root_rank: who sends: a rank of the job, also with a process set.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        process_set: the ranks that take part; the root and this rank are among them.

    Returns:
        On the root `obj` itself, on the others a copy of it.

    Raises:
        BytePSError: see byteps.torch.broadcast.
        ValueError: before init(), the root or this rank is not in the set, or the name is empty.
    """
    session = current_session()
    check_process_set(process_set)
    root_rank = root(session, root_rank, process_set)
    is_root = session.native.info()["rank"] == root_rank
    payload = _pickled(obj) if is_root else bytearray()  # may fail, and is then to have no number
    name = _name("broadcast_object", name, process_set)
    length = bytearray(len(payload).to_bytes(8, "little"))
    _broadcast_bytes(f"broadcast_object.{name}.size", length, root_rank, process_set)
    if not is_root:
        payload = bytearray(int.from_bytes(length, "little"))
    _broadcast_bytes(f"broadcast_object.{name}.bytes", payload, root_rank, process_set)
    return obj if is_root else pickle.loads(payload)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """Sends every rank's object to every rank, pickled (with cloudpickle, if it is installed).

    Args:
        obj: any object that can be pickled; the ranks' need not be alike.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        The objects by rank, copies all of them.

    Raises:
        BytePSError: see byteps.torch.allgather.
        ValueError: before init(), this rank is not in the set, or the name is empty.
    """
    session = current_session()
    check_process_set(process_set)
    payload = _pickled(obj)  # may fail, and is then to have no number
    name = _name("allgather_object", name, process_set)
    view = (ctypes.c_uint8 * len(payload)).from_buffer(payload)
    operation = _native.Collective(
        _native.ALL_GATHER,
        f"allgather_object.{name}",
        dtype=_native.UINT8,
        shape=(len(payload),),
        input=ctypes.addressof(view),
        process_set=process_set.native(),
    )
    request = session.native.collective(operation, view)
    request.wait()
    result = request.result()
    whole = memoryview(result)
    objects, begin = [], 0
    for length in result.splits:
        objects.append(pickle.loads(whole[begin : begin + length]))
        begin += length
    return objects
