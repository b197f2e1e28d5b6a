"""init(), join() and barrier() for users of BytePS and of Horovod alike: what the modules of the frameworks have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native, basics
from byteps.arguments import tensor_name, whole_number
from byteps.process_set import ProcessSet, check_process_set, global_process_set, take_process_sets
from byteps.session import current_session

_NOT_GIVEN: Any = object()


def _check_comm(comm: Any) -> None:
    """After joining: refuses a communicator that is not of all ranks of the job."""
    size = basics.size()
    if hasattr(comm, "Get_size"):  # mpi4py
        if comm.Get_size() != size:
            raise NotImplementedError(
                f"comm has {comm.Get_size()} processes, and the job {size} workers; a job of some of them is not in "
                "this release"
            )
        return
    if list(comm) not in ([], list(range(size))):
        raise NotImplementedError(
            f"comm is {list(comm)}, and the job has ranks 0 to {size - 1}; a job of some of them is not in this release"
        )


def init(
    lazy: Any = True,
    process_sets: Sequence[ProcessSet] | str | None = None,
    *,
    comm: Any = _NOT_GIVEN,
    **options: Any,
) -> None:
    """Joins the job: waits until all workers and servers are there. Calling it again does nothing.

    It takes BytePS's arguments and Horovod's: `init(lazy=True)`, and `init(comm=None, process_sets=None)`. The first
    one without a name is told apart by its type: a bool is `lazy`; None, a list of ranks and an mpi4py communicator are
    `comm`.

    Args:
        lazy: accepted for compatibility; connecting happens here in any case.
        process_sets: sets that operations will be over, to be known at once; None or "dynamic": add_process_set() adds
            them, which is always possible.
        comm: all ranks of the job: None, an empty list, their list, or a communicator of as many processes.
        options: those of byteps.init: coordinator, job, name, token, host, transport, scheduler, timeout.

    Raises:
        BytePSError: see byteps.init.
        TypeError: the first argument could be either.
        ValueError: initialized already, and options were given; or `comm` twice.
        NotImplementedError: a communicator of some ranks.
    """
    if not isinstance(lazy, bool):
        if comm is not _NOT_GIVEN:
            raise ValueError("init() was given comm twice, with its name and without")
        if lazy is not None and not isinstance(lazy, (list, tuple, range)) and not hasattr(lazy, "Get_size"):
            raise TypeError(
                f"init() cannot tell whether {lazy!r} is lazy (a bool) or comm (None, a list of ranks, an mpi4py "
                "communicator); give it with its name"
            )
        comm = lazy
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets is {process_sets!r}; it must be None, a list of ProcessSet, or "dynamic"')
    joins = not basics.is_initialized()
    basics.init(**options)
    try:
        if comm is not _NOT_GIVEN and comm is not None:
            _check_comm(comm)
        if process_sets is not None and not isinstance(process_sets, str):
            take_process_sets(process_sets)
    except BaseException:
        if joins:
            basics.shutdown()
        raise


def join(device: int = -1, *, timeout: float | None = None) -> int:
    """Says that this rank has no data left, and waits until all ranks have said so.

    Until then it counts as zeros in what the others reduce (Sum and Average, of all ranks and of process sets, and what
    DistributedOptimizer and DistributedDataParallel reduce), averages divide by all ranks as ever. Broadcasts, gathers,
    exchanges, Min, Max and Product are an error on every rank while one has joined, and so are sparse gradients: give
    sparse_as_dense=True.

    Args:
        device: accepted for compatibility; the zeros are in host memory.
        timeout: seconds since the last operation of another rank; None means BYTEPS_OP_TIMEOUT.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        BytePSError: see byteps.join.
        ValueError: before init().
        TypeError: `device` is no whole number.
    """
    whole_number("device", device)
    return basics.join(timeout)


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
