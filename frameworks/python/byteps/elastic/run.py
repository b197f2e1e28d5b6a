"""The loop around an elastic training function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from byteps.basics import info, init, suspend
from byteps.elastic.failures import is_failed_operation
from byteps.elastic.state import State
from byteps.errors import BytePSError, HostsUpdatedInterrupt
from byteps.session import CURRENT

T = TypeVar("T")

# So often in a row may an operation fail without a commit in between.
_MOST_FAILURES = 10


def _leave(after_failure: bool) -> None:
    """Leaves the session. Where one operation has failed, others of the same step may have failed in the framework, too
    (byteps.session.Follower.leave)."""
    try:
        suspend()
    except BytePSError:
        # What the program had in flight besides has not ended in time, on one rank or another. The session is closed
        # all the same; init() says if a rank is missing.
        if not after_failure:
            raise
    except Exception as error:
        if not after_failure or not is_failed_operation(error):
            raise


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes `func(state, ...)` an elastic one.

    It is called when all ranks have the state of rank 0. If an operation in it fails on every rank, the state goes back
    to its last commit, the session is left and joined again, on_reset() is called, and the function begins anew with
    that state. HostsUpdatedInterrupt does the same without going back.

    Raises:
        The operation's error (BytePSError, or what its framework makes of it): the session itself has failed (a member
            is lost: in this release the job keeps its members), or an operation failed ten times in a row without a
            commit.
        What the function raises otherwise.
    """

    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **keywords: Any) -> T:
        failures, commits, skip_sync = 0, state.commits, False
        while True:
            after_failure = False
            try:
                if not skip_sync:
                    state.sync()
                result = func(state, *arguments, **keywords)
                CURRENT.finish()  # in JAX a step may still run
                return result
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            except Exception as error:
                if not is_failed_operation(error):
                    raise
                failures = 1 if state.commits != commits else failures + 1
                commits, skip_sync, after_failure = state.commits, False, True
                if info().failed or failures >= _MOST_FAILURES:
                    raise
                state.restore()
            _leave(after_failure)
            init()
            state.on_reset()

    return wrapper
