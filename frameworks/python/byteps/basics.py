"""init, shutdown, and who we are: what every framework's module of BytePS offers."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass

from byteps import _native, surroundings
from byteps.session import CURRENT, close_at_exit, current_session
from byteps.speed import SPEED


def init(
    lazy: bool = True,
    *,
    coordinator: str | None = None,
    job: str | None = None,
    name: str | None = None,
    token: str | None = None,
    host: str | None = None,
    transport: str | None = None,
    scheduler: str | None = None,
    timeout: float | None = None,
) -> None:
    """Joins the job: waits until all workers and servers are there. Calling it again does nothing.

    What is not given comes from the environment (DMLC_* and BYTEPS_*, set by bpslaunch), from what has started this
    process (torchrun, mpirun, srun: surroundings.py), and then from its default. One worker alone needs neither servers
    nor a coordinator. shutdown() runs by itself when Python exits; after an exception that was not caught it does
    not wait for the others, which then hear of it at once.

    Args:
        lazy: accepted for compatibility. Connecting happens here in any case, so that a wrong address is reported at
            this line and not at the first tensor.
        coordinator: "host:port" of the coordinator.
        job: name of the job.
        name: name of this session within the job.
        token: the job's secret.
        host: own address, or address of the interface, to tell the others.
        transport: plugin that carries the data.
        scheduler: plugin that decides what goes first.
        timeout: seconds until every rank must have arrived.

    Raises:
        BytePSError: InvalidArgumentError (an argument or a variable), NotFoundError (a plugin), DeadlineExceededError
            (names the members that did not come), UnauthenticatedError (the token), FailedPreconditionError (versions
            or counts of the members differ; or a forked child of a process that uses BytePS).
        ValueError: initialized already, and options were given.
    """
    del lazy
    meeting = None if coordinator is not None or CURRENT.is_open() else surroundings.join(timeout)
    try:
        CURRENT.open(
            coordinator=coordinator,
            job=job,
            name=name,
            token=token,
            host=host,
            transport=transport,
            scheduler=scheduler,
            timeout=timeout,
        )
    except BaseException:
        if meeting is not None:
            meeting.close()
            meeting.end(0)
        raise
    if meeting is not None:
        surroundings.stay(meeting, CURRENT)
    atexit.unregister(close_at_exit)
    atexit.register(close_at_exit)


def shutdown(timeout: float | None = None) -> None:
    """Leaves the job in order: waits until the operations in flight have ended and the others have come here too or
    left, at most `timeout` seconds (None: 5). Others that work on then go on without this one, until one needs it.
    Without init(), or in a forked child, it does nothing. init() may follow.

    Raises:
        BytePSError: the session had failed, or operations had not ended in time. It is closed all the same.
    """
    CURRENT.close(timeout)
    if not CURRENT.last_error:
        surroundings.leave()


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not, in this process."""
    return CURRENT.is_open()


def suspend() -> None:
    """Leaves the job for a while, as shutdown() does; resume() comes back. Names of tensors need no declaration
    afterwards: tensors meet by name, in any order."""
    CURRENT.close(None)  # The launcher's goodbye is for good.


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins the job again after suspend(), with these numbers in the environment (DMLC_NUM_WORKER, DMLC_NUM_SERVER,
    BYTEPS_GLOBAL_RANK).

    Args:
        num_workers: worker hosts.
        num_servers: servers.
        global_rank: this worker's rank; the job must come to the same.
        context: accepted for compatibility.

    Raises:
        BytePSError: as init(): FailedPreconditionError where the coordinator was started for other numbers.
        ValueError: still initialized; or the job gave this worker another rank.
    """
    del context
    if is_initialized():
        raise ValueError("BytePS is initialized: call suspend() before resume()")
    numbers = {"DMLC_NUM_WORKER": num_workers, "DMLC_NUM_SERVER": num_servers, "BYTEPS_GLOBAL_RANK": global_rank}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    init(lazy=False)
    if rank() != global_rank:
        found = rank()
        shutdown()
        raise ValueError(f"resume() asked for rank {global_rank}; by its place this worker is rank {found}")


def get_pushpull_speed() -> tuple[int, float]:
    """How fast tensors have travelled: (milliseconds since 1970, megabytes per second) of ten seconds, each such sample
    once; (0, -5.0) when there is none. BYTEPS_TELEMETRY_ON=0 switches it off."""
    return SPEED.take()


@dataclass(frozen=True)
class SessionInfo:
    """Who we are, and what we run on."""

    rank: int  # of this worker in the job, 0 .. size-1
    size: int  # workers in the job
    local_rank: int  # of this worker on its host, 0 .. local_size-1
    local_size: int  # workers on this host
    num_servers: int  # servers that sum; 0 where the workers of one host do it, or this worker is alone
    transport: str  # plugin that carries the data
    scheduler: str  # plugin that decides what goes first
    failed: bool  # after a fatal error
    epoch: int  # of the membership
    generation: int  # how often a session of this name was opened in this job, from 1
    shared_buffers: bool  # other processes of this host can map memory of buffer(); there may be none


def info() -> SessionInfo:
    """Everything below in one answer. Raises ValueError before init(), like all of them."""
    return SessionInfo(**current_session().native.info())


def rank() -> int:
    """This worker's number in the job, 0 .. size()-1. Raises ValueError before init()."""
    return info().rank


def size() -> int:
    """The number of workers in the job. Raises ValueError before init()."""
    return info().size


def local_rank() -> int:
    """This worker's number on its host, 0 .. local_size()-1. Raises ValueError before init()."""
    return info().local_rank


def local_size() -> int:
    """The number of workers on this host. Raises ValueError before init()."""
    return info().local_size


def buffer(size: int, pinned: int | None = None) -> _native.Buffer:
    """`size` bytes of memory that BytePS moves fastest: the other workers of this host read and write it where it is,
    and its pages come once. For arrays that are reduced again and again: numpy.frombuffer(byteps.buffer(size)).

    The bytes are zero. The memory is freed with the last array that lies in it, also after shutdown().

    Args:
        size: bytes.
        pinned: the number of a GPU that pins it, so that GPUs copy from and to it without the help of a thread.

    Raises:
        ResourceExhaustedError: there is no memory, or none that can be pinned.
        NotFoundError, UnavailableError: `pinned`, but there is no device plugin, or no driver.
        ValueError: before init().
    """
    if size < 0:
        raise ValueError(f"size is {size}; it must not be negative")
    return current_session().native.buffer(min(size, sys.maxsize), pinned)


def barrier(name: str | None = None, timeout: float | None = None) -> None:
    """Waits until every worker has called it as often as this one. It does not wait for operations in flight.

    Args:
        name: barriers of different names do not meet.
        timeout: seconds; None means BYTEPS_OP_TIMEOUT.

    Raises:
        BytePSError: DeadlineExceededError (names the missing ranks), UnavailableError (a member died).
        ValueError: before init().
    """
    current_session().native.barrier(name, timeout)


def join(timeout: float | None = None) -> int:
    """Says that this worker has no data left, and waits until all workers have said so. Until then it counts as zeros
    in what the others reduce, also in tensors that it never had; averages divide by all workers as ever. What has no
    result with zeros (broadcasts, gathers, minima, maxima, products, barrier()) is an error on every worker while one
    has joined.

    Args:
        timeout: seconds since the last operation of another worker; None means BYTEPS_OP_TIMEOUT.

    Returns:
        The rank that joined last, the same on all workers.

    Raises:
        BytePSError: DeadlineExceededError (names who has not joined; this worker stays joined: call it again to wait
            on), UnavailableError (a member died).
        ValueError: before init().
    """
    return current_session().join(timeout)
