"""barrier() for users of BytePS and of Horovod alike."""

from __future__ import annotations

from typing import Any

from byteps import _native, basics
from byteps.arguments import tensor_name
from byteps.session import current_session
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set


def barrier(
    process_set: ProcessSet | str | None = global_process_set, timeout: float | None = None, *, name: Any = None
) -> None:
    """Waits until every worker of the set has called it as often as this one. It does not wait for operations in
    flight.

    Args:
        process_set: whom to wait for; or a string, which is `name`.
        timeout: seconds; None means BYTEPS_OP_TIMEOUT.
        name: barriers of different names do not meet.

    Raises:
        BytePSError: DeadlineExceededError (names the missing ranks), UnavailableError (a member died).
        ValueError: before init(), the name is given twice, or this rank is not in the set.
    """
    if isinstance(process_set, str):
        if name is not None:
            raise ValueError("barrier() was given two names")
        name, process_set = process_set, None
    native = None if process_set is None else check_process_set(process_set).native()
    if native is None:
        basics.barrier(name, timeout)
        return
    label = "barrier" if name is None else f"barrier.{tensor_name(name)}"
    operation = _native.Collective(_native.BARRIER, label, process_set=native, timeout=timeout)
    current_session().native.collective(operation, None).wait()
