"""Why a job ended early: of the deaths around the first failure, the one that the others follow from.

    verdict = Verdict()
    verdict.weigh(Cause(137, "coordinator was killed by SIGKILL", coordinator), may_come_first)   # for each death
    verdict.cause

The first death that we learn of need not be the first that happened. The kernel closes the sockets of a process that is
killed before it tells the parent, so a worker may see its coordinator gone, and have ended by its own error, before the
coordinator can be reaped. So a death that we learn of later takes the place of the first one if it may have come before
it, and says more: killed by a signal before an exit code, and then a process that others depend on before one that
depends on it. SIGABRT of a worker is no more than an exit code: that is how an exception ends that nobody catches, the
one that tells of a lost peer among them.
"""

from __future__ import annotations

import dataclasses
import signal

from .child import Child, Role

# A server ends without its coordinator, and a worker without either.
_DEPENDENCE = {Role.COORDINATOR: 0, Role.SERVER: 1, Role.WORKER: 2}


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why the job ended early."""

    exit_code: int
    text: str
    child: Child | None = None
    asked_for: bool = False  # by a signal


def gravity(child: Child) -> tuple[bool, int]:
    """Of several that ended, the least is the likeliest cause."""
    assert child.status is not None
    gave_up = child.status >= 0 or (child.spec.role is Role.WORKER and child.status == -signal.SIGABRT)
    return gave_up, _DEPENDENCE[child.spec.role]


class Verdict:
    """The cause as far as it is known."""

    def __init__(self) -> None:
        self.cause: Cause | None = None

    def weigh(self, cause: Cause, may_come_first: bool = False) -> bool:
        """Takes this for the cause if there is none, or if it `may_come_first` and says more; True if it was taken."""
        if self.cause is not None:
            known, new = self.cause.child, cause.child
            if not may_come_first or known is None or new is None or gravity(new) >= gravity(known):
                return False
        self.cause = cause
        return True
