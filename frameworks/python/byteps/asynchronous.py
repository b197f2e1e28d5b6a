"""Does this job train asynchronously? And how its servers get the parameters."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from byteps.errors import FailedPreconditionError, UnimplementedError
from byteps.reduce_op import Average, ReduceOp, Sum
from byteps.session import current_session


def asynchronous_training() -> bool:
    """What BYTEPS_ENABLE_ASYNC says; init() has refused what is neither yes nor no."""
    return os.environ.get("BYTEPS_ENABLE_ASYNC", "").strip().lower() in ("1", "true", "yes", "on")


def refuse_asynchronous(what: str) -> None:
    """Raises UnimplementedError if this job trains asynchronously: `what` ("byteps.jax.DistributedOptimizer") would
    train synchronously all the same."""
    if asynchronous_training():
        raise UnimplementedError(
            f"BYTEPS_ENABLE_ASYNC=1, but {what} has no asynchronous training: the servers keep parameters, and what "
            "updates them must tell. Use DistributedOptimizer, which docs/async.md says more of, or unset "
            "BYTEPS_ENABLE_ASYNC for all workers and servers"
        )


def check_asynchronous(op: ReduceOp, **given: bool) -> None:
    """Raises ValueError for what asynchronous training cannot do: another reduction than Average or Sum, which mean the
    same, and arguments that were `given`, by their names."""
    refused = {f"op={op.name}": op not in (Average, Sum), **given}
    for argument, is_given in refused.items():
        if is_given:
            raise ValueError(f"{argument} does not go with asynchronous training (BYTEPS_ENABLE_ASYNC=1)")


class Beginning:
    """Which parameters of one optimizer the servers of this session have.

    They get those of rank 0, once: what is added again would count twice. So an error or a KeyboardInterrupt while all
    wait for each other leaves the way open to wait again; one while the parameters are sent does not.
    """

    def __init__(self) -> None:
        self._session: Any = None
        self._tried: set[str] = set()
        self._added: set[str] = set()
        self._begun: set[str] = set()
        # Before the names of its tensors on the servers, where the caller has none: no other optimizer has them.
        self.prefix = ""

    def begin(
        self,
        names: Sequence[str],
        values: Callable[[list[int]], Any],
        add: Callable[[list[int], Any], None],
        wait: Callable[[str], None],
    ) -> None:
        """Has the servers get what they lack of these parameters.

        Args:
            names: the same on all ranks, in the same order.
            values: of the parameters with these indices; nothing is sent yet.
            add: sends those, and returns when the servers have them.
            wait: for all ranks, by a name.

        Raises:
            FailedPreconditionError: sending them has failed before in this session.
            What the three raise.
        """
        if self._session is not current_session():  # servers of another job have nothing of ours
            self._session = current_session()
            self._tried, self._added, self._begun = set(), set(), set()
            self.prefix = ""
        fresh = [name for name in names if name not in self._begun]
        if not fresh:
            return
        if not self.prefix:
            # By what the optimizer has, not by when it begins: one rank may take the first step of another one first.
            own = f"AsyncParam.{zlib.crc32(names[0].encode()):08x}"
            self.prefix = f"{own}.{self._session.object_number(own)}."
        missing = [index for index, name in enumerate(names) if name in fresh and name not in self._added]
        lost = [names[index] for index in missing if names[index] in self._tried]
        if lost:
            raise FailedPreconditionError(
                f"asynchronous training has not begun: an error kept {lost[0]} and {len(lost) - 1} other parameters "
                "from the servers, which may have some of them; shutdown() and init() on all ranks, and begin anew",
            )
        if missing:
            begun = values(missing)
            self._tried.update(names[index] for index in missing)
            add(missing, begun)
            self._added.update(names[index] for index in missing)
        wait(f"{self.prefix}{len(self._begun)}")
        self._begun.update(fresh)
