"""Python objects over all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps import objects
from byteps.process_set import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """byteps.broadcast_object, with the argument `session` of Horovod's users, which nothing needs here."""
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function of one argument that does broadcast_object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, that of rank 0 first; see byteps.objects.allgather_object. `session`: as above."""
    del session
    return objects.allgather_object(obj, name, process_set)
