"""Why a job ended early: of the deaths around the first failure, the one that the others follow from.

    verdict = Verdict()
    verdict.weigh(Cause(137, "coordinator was killed by SIGKILL", coordinator), may_come_first)   # for each death
    verdict.cause

The first death that we learn of need not be the first that happened. The kernel closes the sockets of a process that is
killed before it tells the parent, so a worker may see its coordinator gone, and have ended by its own error, before the
coordinator can be reaped. So a death that we learn of later takes the place of the first one if it may have come before
it, and says more: killed by a signal before an exit code, and then a process that others depend on before one that
depends on it. SIGABRT of a worker is no more than an exit code: that is how an exception ends that is not caught, the
one that tells of a lost peer among them.

Of two workers that gave up, the one that has raised first is the cause, and not the one that ended first: Python prints
the exception, then leaves the session, of which the others hear, and ends some time after that. An error of BytePS that
tells of a lost member, whichever framework has raised it, follows from something else.
"""

from __future__ import annotations

import dataclasses
import signal

from .child import Member, Role

# What runs on a host ends without it, a server without its coordinator, and a worker without either.
_DEPENDENCE = {Role.HOST: 0, Role.COORDINATOR: 1, Role.SERVER: 2, Role.WORKER: 3}


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why the job ended early."""

    exit_code: int
    text: str
    child: Member | None = None
    asked_for: bool = False  # by a signal


def gravity(child: Member) -> tuple[bool, int]:
    """Of several that ended, the least is the likeliest cause."""
    assert child.status is not None
    gave_up = child.status >= 0 or (child.spec.role is Role.WORKER and child.status == -signal.SIGABRT)
    return gave_up, _DEPENDENCE[child.spec.role]


def raised_first(child: Member, other: Member) -> bool:
    """Whether `child`, which gave up as `other` did, has done so before it, as far as their last lines tell."""
    if child.tells_of_a_loss != other.tells_of_a_loss:
        return other.tells_of_a_loss
    if child.raised_at is None or other.raised_at is None:
        return False
    return child.raised_at < other.raised_at


class Verdict:
    """The cause as far as it is known."""

    def __init__(self) -> None:
        self.cause: Cause | None = None

    def weigh(self, cause: Cause, may_come_first: bool = False) -> bool:
        """Takes this for the cause if there is none, or if it `may_come_first` and says more; True if it was taken."""
        if self.cause is not None:
            known, new = self.cause.child, cause.child
            if not may_come_first or known is None or new is None or gravity(new) > gravity(known):
                return False
            if gravity(new) == gravity(known) and not (gravity(new)[0] and raised_first(new, known)):
                return False
        self.cause = cause
        return True
