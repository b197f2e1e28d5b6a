"""A session of one's own, beside the one of init(): for several memberships in one process, and for asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from byteps import _native
from byteps.array_collectives import ASKED, CollectiveOperation, start
from byteps.arrays import start_broadcast, start_push_pull
from byteps.basics import SessionInfo
from byteps.library import LIBRARY
from byteps.operation import Operation
from byteps.reduce_op import ReduceOp
from byteps.session import Session


class ArraySession:
    """A membership in a job, made by open_session(). Its calls are those of the module, without init()::

        with byteps.open_session(name="metrics") as session:
            mean = session.push_pull(array).wait()      # or: await session.push_pull(array)

    Leaving the block leaves the job in order; an exception closes the session at once, and the others hear of it.
    """

    def __init__(self, native: _native.Session) -> None:
        self._session = Session(native)

    def push_pull(
        self,
        array: Any,
        output: Any = None,
        *,
        name: str | None = None,
        average: bool = True,
        op: ReduceOp | int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Operation:
        """Starts byteps.push_pull on this session."""
        return start_push_pull(self._session, array, output, name, average, op, priority, timeout)

    def broadcast(
        self,
        array: Any,
        root_rank: int = 0,
        output: Any = None,
        *,
        name: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Operation:
        """Starts byteps.broadcast on this session."""
        return start_broadcast(self._session, array, root_rank, output, name, priority, timeout)

    def collective(self, kind: str, array: Any, *arguments: Any, **options: Any) -> CollectiveOperation:
        """Starts a collective of byteps on this session, of all its ranks: `session.collective("allgather", rows)`."""
        if kind not in ASKED:
            raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(sorted(ASKED))}")
        return start(self._session, ASKED[kind](self._session, array, *arguments, **options))

    def barrier(self, name: str | None = None, timeout: float | None = None) -> None:
        """As byteps.barrier. It blocks: in a coroutine `await asyncio.to_thread(session.barrier)`."""
        self._session.native.barrier(name, timeout)

    def buffer(self, size: int) -> _native.Buffer:
        """As byteps.buffer."""
        if size < 0:
            raise ValueError(f"size is {size}; it must not be negative")
        return self._session.native.buffer(size)

    def info(self) -> SessionInfo:
        """Who we are in this session."""
        return SessionInfo(**self._session.native.info())

    def shutdown(self, timeout: float | None = None) -> None:
        """Leaves the job in order, as byteps.shutdown, and closes the session."""
        try:
            self._session.native.shutdown(timeout)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the session; without shutdown() the others see this worker fail. Closing it again does nothing."""
        self._session.native.close()

    def __enter__(self) -> ArraySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.close()


def open_session(
    *,
    coordinator: str | None = None,
    job: str | None = None,
    name: str | None = None,
    token: str | None = None,
    host: str | None = None,
    transport: str | None = None,
    scheduler: str | None = None,
    timeout: float | None = None,
) -> ArraySession:
    """Joins the job once more, as init() does, and gives the session into the caller's hands. Every worker of the job
    opens a session of that name; sessions of different names do not meet.

    Args and raises: those of init().
    """
    return ArraySession(
        LIBRARY.open(
            coordinator=coordinator,
            job=job,
            name=name,
            token=token,
            host=host,
            transport=transport,
            scheduler=scheduler,
            timeout=timeout,
        )
    )
