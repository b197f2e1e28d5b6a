"""Process sets: the ranks that take part in an operation.

    evens = byteps.torch.add_process_set(range(0, byteps.torch.size(), 2))
    if evens.included():
        mean = byteps.torch.allreduce(tensor, process_set=evens)

A set is its ranks: nothing is sent when one is added, and ranks that are not in it need not know it. Operations of
different sets never meet, whatever their names. Adding the same sets in the same order on all ranks makes their numbers
(process_set_id) the same, too.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from byteps import _native
from byteps.errors import FailedPreconditionError
from byteps.session import CURRENT, Session, current_session


class ProcessSet:
    """A set of ranks; add_process_set() or init(process_sets=[...]) makes it usable.

    Attributes:
        ranks: in ascending order.
        process_set_id: its number; None as long as the job does not know it.
    """

    process_set_id: int | None = None
    ranks: list[int] | None
    mpi_comm: Any = None  # of Horovod; communicators of MPI are not used here

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Raises ValueError for what is no collection of ranks."""
        try:
            self.ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise ValueError(
                f"a ProcessSet is made of a list of ranks, not of {ranks_or_comm!r} (communicators of MPI are not used)"
            ) from None
        self._session: weakref.ref[Session] | None = None
        self._native: _native.ProcessSet | None = None

    def _owner(self) -> Session | None:
        """The session whose operations can be over it: that of init(), while it is open, or one of open_session()."""
        session = None if self._session is None else self._session()
        if session is None or session.private:
            return session
        return session if CURRENT.is_open() and session is current_session() else None

    def _is_known(self) -> bool:
        return self._owner() is not None

    def _use(self, session: Session) -> None:
        """Makes it usable. Raises ValueError."""
        self._native = session.native.process_set(self.ranks or ())
        self._session = weakref.ref(session)

    def size(self) -> int | None:
        """How many ranks it has; None as long as the job does not know it."""
        return len(self.ranks or ()) if self._is_known() else None

    def rank(self) -> int | None:
        """This worker's place in it; None as long as the job does not know it. Raises ValueError outside of it."""
        owner = self._owner()
        if owner is None:
            return None
        own = int(owner.native.info()["rank"])
        if own not in (self.ranks or ()):
            raise ValueError(f"rank {own} is not part of {self}")
        return (self.ranks or []).index(own)

    def included(self) -> bool | None:
        """Whether this worker is in it; None as long as the job does not know it."""
        owner = self._owner()
        return None if owner is None else owner.native.info()["rank"] in (self.ranks or ())

    def key(self) -> str:
        """What tells it from other sets; "" for that of all ranks."""
        return ",".join(map(str, self.ranks or ()))

    def native(self, session: Session | None = None) -> _native.ProcessSet | None:
        """What operations of a session, by default that of init(), are given; None for all ranks.

        Raises:
            ValueError: before init(), or the session does not know the set.
        """
        if session is not None and session.private:
            if self._owner() is not session:
                raise ValueError(
                    f"process_set is {self}, which this session does not know: give it to its add_process_set()"
                )
            return self._native
        current_session()
        if self._owner() is not current_session():
            raise ValueError(
                f"process_set is {self}, which the job does not know: give it to add_process_set(), or to "
                "init(process_sets=[...])"
            )
        return self._native

    def _invalidate(self) -> None:
        self.process_set_id = None
        self._session = self._native = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy elsewhere is not known there.
        return type(self), (self.ranks,)


class _Global(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int] | None:  # type: ignore[override]
        return list(range(current_session().native.info()["size"])) if CURRENT.is_open() else None

    @ranks.setter
    def ranks(self, value: object) -> None:
        pass

    def _owner(self) -> Session | None:
        return current_session() if CURRENT.is_open() else None

    def size(self) -> int | None:
        """The number of workers; None before init()."""
        return int(current_session().native.info()["size"]) if CURRENT.is_open() else None

    def key(self) -> str:
        return ""

    def native(self, session: Session | None = None) -> None:
        """None."""
        return

    def __reduce__(self) -> str:  # type: ignore[override]
        return "global_process_set"


global_process_set = _Global()


class _Registry:
    """The sets that the sessions of this process know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: weakref.WeakKeyDictionary[Session, dict[tuple[int, ...], ProcessSet]] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Session, itertools.count[int]] = weakref.WeakKeyDictionary()

    def add(self, process_set: ProcessSet) -> bool:
        """False: the session knows a set of these ranks already."""
        session = current_session()
        ranks = tuple(process_set.ranks or ())
        with self._lock:
            known = self._sets.setdefault(session, {})
            if ranks in known or list(ranks) == global_process_set.ranks or process_set._is_known():
                return False
            process_set._use(session)
            process_set.process_set_id = next(self._numbers.setdefault(session, itertools.count(1)))
            known[ranks] = process_set
        return True

    def by_number(self, number: int) -> ProcessSet | None:
        """The set of the session that is open now with this process_set_id."""
        session = current_session()
        with self._lock:
            return next(
                (known for known in self._sets.get(session, {}).values() if known.process_set_id == number), None
            )

    def by_ranks(self, ranks: Iterable[int]) -> ProcessSet | None:
        """The set of these ranks that the session that is open now knows."""
        session = current_session()
        with self._lock:
            return self._sets.get(session, {}).get(tuple(ranks))

    def remove(self, process_set: ProcessSet) -> bool:
        """False: the session does not know it, or an operation of this rank still uses it."""
        session = current_session()
        with self._lock:
            known = self._sets.get(session, {})
            ranks = tuple(process_set.ranks or ())
            if known.get(ranks) is not process_set or process_set._native is None:
                return False
            try:
                process_set._native.remove()
            except FailedPreconditionError:
                return False
            del known[ranks]
        process_set._invalidate()
        return True


_REGISTRY = _Registry()


def check_process_set(process_set: Any, session: Session | None = None) -> ProcessSet:
    """The argument, which is to be a set that the session (None: that of init()) knows.

    Raises:
        TypeError: no process set.
        ValueError: before init(), or the session does not know it.
    """
    if process_set is global_process_set:
        return global_process_set
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}; it must be a ProcessSet")
    process_set.native(session)
    return process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a set of ranks known to the session, so that operations can be over it. Nothing is sent.

    Args:
        process_set: a ProcessSet, or ranks of the job.

    Returns:
        The set.

    Raises:
        ValueError: before init(); no ranks, a rank twice, or one that the job does not have; or a set of these ranks is
            known already (that of all ranks always is: global_process_set).
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if not _REGISTRY.add(made):
        raise ValueError(f"Attempted to add a duplicate process set: {made}")
    return made


def process_set_by_id(process_set_id: int) -> ProcessSet:
    """The set with this number, 0 being that of all ranks. Raises ValueError before init() or where there is none."""
    found = global_process_set if process_set_id == 0 else _REGISTRY.by_number(process_set_id)
    if found is None:
        raise ValueError(f"no process set has the number {process_set_id}")
    return found


def known_process_set(process_set: ProcessSet) -> ProcessSet:
    """Of a set that came by pickle: the one of the same ranks that the session here knows; if there is none, itself."""
    if not isinstance(process_set, ProcessSet):  # check_process_set() refuses it
        return process_set
    if process_set is global_process_set or not CURRENT.is_open():
        return process_set
    return _REGISTRY.by_ranks(process_set.ranks or ()) or process_set


def unlisted_process_set(ranks: Iterable[int]) -> ProcessSet:
    """A set that can be used and that the user has not added, for what has groups of its own (torch.distributed); that
    of all ranks is global_process_set. Raises ValueError."""
    made = ProcessSet(ranks)
    if made.ranks == global_process_set.ranks:
        return global_process_set
    made._use(current_session())
    return made


def take_process_sets(process_sets: Iterable[ProcessSet]) -> None:
    """What init(process_sets=[...]) does: adds each. One of the same ranks as another stays unknown, as in Horovod."""
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet):
            raise TypeError(f"process_sets has {process_set!r}; each must be a ProcessSet")
        if not process_set._is_known() and not _REGISTRY.add(process_set):
            process_set._invalidate()


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; its ProcessSet may be added again.

    Returns:
        False if nothing was done: the session does not know it, it is that of all ranks, or an operation of this rank
        still uses it.

    Raises:
        TypeError: no process set.
        ValueError: before init().
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}; it must be a ProcessSet")
    return process_set is not global_process_set and _REGISTRY.remove(process_set)
