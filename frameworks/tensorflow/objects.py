"""Python objects over all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.objects import broadcast_object as _broadcast_object
from byteps.session import current_session


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None) -> Any:
    """byteps.broadcast_object, with the argument `session` of Horovod's users, which nothing needs here."""
    del session
    return _broadcast_object(obj, root_rank, name)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None) -> Callable[[Any], Any]:
    """A function of one argument that does broadcast_object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name)


def allgather_object(obj: Any, session: Any = None, name: str | None = None) -> list[Any]:
    """Every rank's object, that of rank 0 first.

    Raises:
        BytePSError: see byteps.broadcast_object.
        ValueError: before init().
    """
    own = current_session()
    if name is None:
        name = f"allgather_object.noname.{own.number('allgather_object')}"
    size = own.native.info()["size"]
    return [broadcast_object(obj, of, session, f"{name}.of.{of}") for of in range(size)]
