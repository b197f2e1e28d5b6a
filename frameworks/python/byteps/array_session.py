"""A session of one's own, beside the one of init(): for several memberships in one process, and for asyncio."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from byteps import _native
from byteps.array_collectives import ASKED, CollectiveOperation, Group, start
from byteps.arrays import start_broadcast, start_push_pull
from byteps.basics import SessionInfo
from byteps.errors import FailedPreconditionError
from byteps.library import LIBRARY
from byteps.operation import Operation
from byteps.process_set import ProcessSet
from byteps.reduce_op import ReduceOp
from byteps.session import Session


class ArraySession:
    """A membership in a job, made by open_session(). Its calls are those of the module, without init()::

        with byteps.open_session(name="metrics") as session:
            mean = session.push_pull(array).wait()      # or: await session.push_pull(array)

    Leaving the block leaves the job in order; an exception closes the session at once, and the others hear of it.
    """

    def __init__(self, native: _native.Session) -> None:
        self._session = Session(native, private=True)
        self._sets: list[ProcessSet] = []

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
        """Starts a collective of byteps on this session: `session.collective("allgather", rows)`. `process_set`: one of
        this session's add_process_set()."""
        if kind not in ASKED:
            raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(sorted(ASKED))}")
        return start(self._session, ASKED[kind](self._session, array, *arguments, **options))

    def group(self) -> Group:
        """A byteps.Group of operations of this session."""
        return Group(self._session)

    def add_process_set(self, process_set: ProcessSet | Iterable[int]) -> ProcessSet:
        """Makes a set of ranks known to this session, as byteps.add_process_set does for that of init(). Nothing is
        sent; the set is of this session alone, until it is removed or the session is closed.

        Raises:
            ValueError: no ranks, a rank twice, or one that the job does not have; or a set of these ranks is known
                already (that of all ranks always is: global_process_set), or this very set is another session's.
        """
        made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        known = [of_session.ranks for of_session in self._sets]
        if made._is_known() or made.ranks in [list(range(self.info().size)), *known]:
            raise ValueError(f"Attempted to add a duplicate process set: {made}")
        made._use(self._session)
        self._sets.append(made)
        return made

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Forgets a set. False: this session does not know it, or an operation of this rank still uses it."""
        if process_set not in self._sets:
            return False
        try:
            native = process_set.native(self._session)
            if native is not None:
                native.remove()
        except FailedPreconditionError:
            return False
        self._sets.remove(process_set)
        process_set._invalidate()
        return True

    def barrier(self, name: str | None = None, timeout: float | None = None) -> None:
        """As byteps.barrier. It blocks: in a coroutine `await asyncio.to_thread(session.barrier)`."""
        self._session.native.barrier(name, timeout)

    def buffer(self, size: int, pinned: int | None = None) -> _native.Buffer:
        """As byteps.buffer."""
        if size < 0:
            raise ValueError(f"size is {size}; it must not be negative")
        return self._session.native.buffer(size, pinned)

    def start_timeline(self, file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """As byteps.start_timeline, of this session's operations."""
        self._session.native.start_timeline(os.fspath(file_path), bool(mark_cycles))

    def stop_timeline(self) -> None:
        """As byteps.stop_timeline."""
        self._session.native.stop_timeline()

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
        while self._sets:
            self._sets.pop()._invalidate()

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
