"""The session behind init(), shutdown(), rank() and the rest: one per process, held by `CURRENT`.

Frameworks' bindings use it so::

    session = current_session()
    request = session.native.push_pull(name, dtype, shape, ...)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from byteps import _native
from byteps.errors import BytePSError, FailedPreconditionError, NotInitializedError, StatusCode
from byteps.library import LIBRARY

# Unnamed things are numbered in a circle: the job remembers every name, so their number must not grow for ever. More
# than this many of one kind (half as many right after a join) cannot be in flight; the library refuses the one too
# many, by name.
_MAX_NUMBERS = 4096

# Seconds; the shortest wait there is, since 0 means the default.
_AT_ONCE = 0.001


class Session:
    """An open session with what belongs to its life: the numbers of its unnamed operations and objects.

    Args:
        native: the session of the library.
        private: it is not that of init(), but of open_session().
    """

    def __init__(self, native: _native.Session, private: bool = False) -> None:
        self.native = native
        self.private = private
        self.process = os.getpid()
        self._first = 0
        self._numbers: dict[tuple[str, str], Iterator[int]] = defaultdict(itertools.count)
        self._unused: dict[tuple[str, str], list[int]] = {}
        self._object_numbers: dict[tuple[str, str], Iterator[int]] = defaultdict(itertools.count)

    def is_own(self) -> bool:
        """Whether this process has opened it, and not one that this was forked from."""
        return self.process == os.getpid()

    def number(self, kind: str, process_set: str = "") -> int:
        """The next number of an unnamed operation of this kind. Ranks that start unnamed operations in the same order
        get the same numbers, whatever else they do between. A join() begins all of them anew."""
        # TensorFlow's AutoGraph comes here, and cannot read an assignment within an expression.
        unused = self._unused.get((process_set, kind)) if self._unused else None
        if unused:
            with contextlib.suppress(IndexError):  # another thread has taken it
                return unused.pop()
        return next(self._numbers[process_set, kind]) % _MAX_NUMBERS

    def give_back(self, number: int, kind: str, process_set: str = "") -> None:
        """Makes `number`, which number() has given for an operation that the library has then refused to begin, that
        of the next one: the other ranks' operation of this number waits for it."""
        self._unused.setdefault((process_set, kind), []).append(number)

    def object_number(self, kind: str, process_set: str = "") -> int:
        """The next number of an object of this kind that names its operations by it: an optimizer, a wrapper, a store.
        Ranks that make them in the same order get the same numbers, whatever else they do between. Objects outlive a
        join(), so it does not begin these anew."""
        return next(self._object_numbers[process_set, kind]) % _MAX_NUMBERS

    def join(self, timeout: float | None) -> int:
        """See byteps.join. Behind it unnamed operations of all ranks meet again: a rank that ran out of data has
        started fewer of them than the others."""
        try:
            last = self.native.join(timeout)
        finally:
            CURRENT.tell_joined(self)
        # Alternately in the two halves of the circle: what was started before may be in flight still, under its name.
        self._first = 0 if self._first else _MAX_NUMBERS // 2
        self._numbers = defaultdict(partial(itertools.count, self._first))
        self._unused = {}
        return last


class Follower(Protocol):
    """Native code beside this package that uses the session of the process, too (byteps/shim.py)."""

    def attach(self, native: _native.Session) -> None:
        """The session is open."""

    def leave(self) -> None:
        """The session is about to leave the job: what a framework holds back is to be submitted now. It may raise: that
        is the error of an operation that is not told elsewhere."""

    def joined(self, native: _native.Session) -> None:
        """This rank has joined: it has taken part, with zeros, in what it had left out."""

    def detach(self, native: _native.Session) -> None:
        """The session is about to be closed: no call on it may be running when this returns, nor come later."""


class _Holder:
    """At most one open session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: list[Follower] = []
        self._session: Session | None = None
        # A parent's, in a child that was forked meanwhile.
        self._inherited: Session | None = None
        # Why the last session did not end in order.
        self.last_error = ""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # A child must not inherit a lock that another thread of the parent holds.
        self._lock = threading.Lock()
        session = self._session
        # Another's hook, called before, may have opened one of the child's own.
        if session is not None and not session.is_own():
            self._inherited, self._session = session, None

    def open(self, **options: object) -> None:
        """Opens a session with the options of bps_open_args, unless one is open already."""
        with self._lock:
            if self.is_open():
                if any(option is not None for option in options.values()):
                    raise ValueError("BytePS is initialized already; call shutdown() before init() with options")
                return
            given = {key: value for key, value in options.items() if value is not None}
            session = Session(LIBRARY.open(**given))  # type: ignore[arg-type]
            for follower in self._followers:
                follower.attach(session.native)
            self._session = session
            self._inherited = None
            self.last_error = ""

    def follow(self, follower: Follower) -> None:
        """Tells `follower` of the session that is open now, and of all later ones."""
        with self._lock:
            if self._session is not None and self._session.is_own():
                follower.attach(self._session.native)
            self._followers.append(follower)

    def tell_joined(self, session: Session) -> None:
        """Tells the followers that this session has joined."""
        with self._lock:
            if session is self._session and session.is_own():
                for follower in self._followers:
                    follower.joined(session.native)

    def close(self, timeout: float | None) -> None:
        """Leaves the job and closes the session, if one is open in this process."""
        with self._lock:
            session = self._session
            if session is None or not session.is_own():
                return
            self._session = None
        try:
            if timeout != _AT_ONCE:
                self._leave()
        except BaseException:
            # What goes wrong now follows from it, or is less.
            with contextlib.suppress(BytePSError):
                self._shut_down(session, timeout)
            raise
        self._shut_down(session, timeout)

    def finish(self) -> None:
        """Waits until what frameworks hold back, or still run, has been submitted. Raises the error of an operation
        that has failed and that is not told elsewhere (Follower.leave)."""
        if self.is_open():
            self._leave()

    def _leave(self) -> None:
        with contextlib.ExitStack() as each:
            for follower in self._followers:
                each.callback(follower.leave)

    def _shut_down(self, session: Session, timeout: float | None) -> None:
        try:
            session.native.shutdown(timeout)
        except (TypeError, ValueError):
            # No timeout at all: nothing has happened, and the others must not see us die of it.
            with self._lock:
                if self._session is None:
                    self._session = session
            raise
        except BaseException as error:
            self.last_error = str(error)
            self._close(session)
            raise
        self._close(session)

    def _close(self, session: Session) -> None:
        for follower in self._followers:
            follower.detach(session.native)
        session.native.close()

    def is_open(self) -> bool:
        session = self._session
        return session is not None and session.is_own()

    def get(self) -> Session:
        """The open session.

        Raises:
            NotInitializedError: there is none.
            FailedPreconditionError: this process was forked from the one that opened it.
        """
        # On every operation's way: a child that was forked behind Python's back is refused by the session itself.
        session = self._session
        if session is not None:
            return session
        if self._inherited is not None:
            raise FailedPreconditionError(
                f"process {os.getpid()} was forked from process {self._inherited.process} after bps.init(), and a "
                'forked child cannot use the session of its parent. Start the child with the start method "spawn" and '
                "call bps.init() there, or leave communication to the parent.",
                StatusCode.FAILED_PRECONDITION,
            )
        raise NotInitializedError("BytePS is not initialized: call bps.init() first", StatusCode.FAILED_PRECONDITION)


CURRENT = _Holder()


# The open session; see _Holder.get for the errors.
current_session = CURRENT.get


def close_at_exit() -> None:
    """Leaves the job when the interpreter ends. An operation that failed, and that nobody has waited for, is told here
    (Follower.leave): as any exception that ends a program, it makes the exit status 1, if that was 0. What goes wrong
    while the job is left cannot be reported any more."""
    # An exception has ended the program: the others may need us, and waiting for them would keep them waiting.
    died = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
    try:
        CURRENT.close(timeout=_AT_ONCE if died else None)
    except BytePSError:
        pass
    except Exception:
        print("byteps: an operation has failed that the program has not waited for:", file=sys.stderr)
        traceback.print_exc()
        _native.change_exit_status()  # Python's own is not changed by an exception in a function of atexit
