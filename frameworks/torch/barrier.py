"""barrier() for users of BytePS and of Horovod alike."""

from __future__ import annotations

from typing import Any

from byteps import basics
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set


def barrier(
    process_set: ProcessSet | str | None = global_process_set, timeout: float | None = None, *, name: Any = None
) -> None:
    """Waits until every worker has called it as often as this one. It does not wait for operations in flight.

    Args:
        process_set: global_process_set; or a string, which is `name`.
        timeout: seconds; None means BYTEPS_OP_TIMEOUT.
        name: barriers of different names do not meet.

    Raises:
        BytePSError: DeadlineExceededError (names the missing ranks), UnavailableError (a member died).
        ValueError: before init(), or the name is given twice.
        NotImplementedError: a process set of some ranks.
    """
    if isinstance(process_set, str):
        if name is not None:
            raise ValueError("barrier() was given two names")
        name, process_set = process_set, None
    if process_set is not None:
        check_process_set(process_set)
    basics.barrier(name, timeout)
