"""When the end of a job has to be over: the deadlines of its phases, which add up to a promise.

    countdown = Countdown(kill_after=5.0)
    countdown.begin(now, OWN_EXIT_SECONDS)     # the first failure; 0: told to end, by a signal
    deadline = countdown.workers(now)            # of SIGTERM to the workers, on entering that phase
    deadline = countdown.killed(now)             # of SIGKILL, in any phase

`limit` is the promise: whatever ignores SIGTERM, and however late we come to enter a phase (the machine may have more
to do than us), all have been killed by then. With the default of `kill_after` it is 10 seconds, 8 for a signal. A host
that goes silent is noticed late: then the time counts from its last sign of life. Each phase leaves the following ones
their share. A process that hangs in the kernel does not even end on SIGKILL; each phase waits for it, when there is no
time left, a last quarter of a second.

Before `begin`, when all workers have ended well, services have longer (freeing memory takes time).
"""

from __future__ import annotations

# How long workers have, after a process of the job has failed, to end by their own errors.
OWN_EXIT_SECONDS = 2.0
# The same where a host has gone silent, from its last sign of life on: when that is noticed they are over. No worker
# knows of it sooner than we do.
SILENT_OWN_EXIT_SECONDS = 1.0
# How long the coordinator has to end, and then the servers; after a failure.
SERVICE_SECONDS = 1.0
# How long both have, each, when all workers have ended well.
SERVICE_SECONDS_AT_THE_END = 10.0
# How long the kernel has to carry out SIGKILL: a process inside a hung system call does not end; and how long at least.
KILL_SECONDS = 1.0
LEAST_KILL_SECONDS = 0.25


class Countdown:
    """The deadlines of one job. All times are of time.monotonic()."""

    def __init__(self, kill_after: float) -> None:
        """`kill_after`: seconds from SIGTERM to SIGKILL."""
        self._kill_after = kill_after
        self._own_exit = 0.0
        self.limit = float("inf")

    def begin(self, since: float, own_exit: float) -> None:
        """The job must end.

        Args:
            since: when that which ends it happened: now, or earlier
            own_exit: seconds from then for the workers' own errors
        """
        self._own_exit = own_exit
        self.limit = since + own_exit + self._kill_after + KILL_SECONDS + 2 * SERVICE_SECONDS

    def own_exit(self, now: float) -> float:
        """When workers that have not ended by their own errors are told to."""
        return min(now + self._own_exit, self.limit - self._kill_after - KILL_SECONDS - 2 * SERVICE_SECONDS)

    def workers(self, now: float) -> float:
        """When workers that do not end are killed."""
        return min(now + self._kill_after, self.limit - KILL_SECONDS - SERVICE_SECONDS)

    def coordinator(self, now: float) -> float:
        """When a coordinator that does not end is killed."""
        return min(now + self._service_seconds(), self.limit - SERVICE_SECONDS)

    def servers(self, now: float) -> float:
        """When servers that do not end are killed."""
        return min(now + self._service_seconds(), self.limit - LEAST_KILL_SECONDS)

    def killed(self, now: float) -> float:
        """When what was killed is given up."""
        return max(min(now + KILL_SECONDS, self.limit), now + LEAST_KILL_SECONDS)

    def _service_seconds(self) -> float:
        begun = self.limit != float("inf")
        return min(self._kill_after, SERVICE_SECONDS) if begun else SERVICE_SECONDS_AT_THE_END
