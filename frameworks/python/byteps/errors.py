"""What goes wrong, as exceptions.

Every failure of the library is a BytePSError, with the library's own words: what was asked, what was found, who is
missing (role, rank, host), what to do. The subclass says what kind it is, `retryable` whether the same call may succeed
when tried again::

    try:
        bps.push_pull(tensor, name="loss")
    except bps.UnavailableError as error:   # a member of the job died
        print(error)                        # ... names it
"""

from enum import IntEnum


class StatusCode(IntEnum):
    """Kinds of failure; numerically those of the C ABI, of Abseil and of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BytePSError(RuntimeError):
    """A failed call. `code` says what kind of failure, `retryable` whether trying again can help."""

    def __init__(self, message: str, code: int = StatusCode.UNKNOWN, retryable: bool = False) -> None:
        super().__init__(message)
        self.code: int = StatusCode(code) if code in _CODES else code
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), int(self.code), self.retryable)


class CancelledError(BytePSError):
    """The operation was given up here, or its session was closed."""


class InvalidArgumentError(BytePSError, ValueError):
    """An argument or an environment variable has a value that cannot be used."""


class DeadlineExceededError(BytePSError):
    """A rank did not come in time; the message names it."""


class NotFoundError(BytePSError):
    """Something named, such as a plugin, is not there; the message lists where it was looked for."""


class AlreadyExistsError(BytePSError, ValueError):
    """An operation on a tensor of this name is still in flight on this rank."""


class ResourceExhaustedError(BytePSError):
    """A limit was reached."""


class FailedPreconditionError(BytePSError):
    """Not possible in this state: the ranks disagree about a tensor, the session was shut down, or this process was
    forked from the one that opened the session."""


class NotInitializedError(FailedPreconditionError, ValueError):
    """init() was not called, or shutdown() was."""


class AbortedError(BytePSError):
    """Another rank gave up the operation; the message names it."""


class UnimplementedError(BytePSError, NotImplementedError):
    """The library does not do this (yet)."""


class InternalError(BytePSError):
    """A defect of the library."""


class UnavailableError(BytePSError):
    """A member of the job is gone; the message names it. The session cannot be used any more."""


class UnauthenticatedError(BytePSError):
    """The job's token is missing or wrong."""


_CODES = frozenset(int(code) for code in StatusCode)

_CLASSES: dict[int, type[BytePSError]] = {
    StatusCode.CANCELLED: CancelledError,
    StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    StatusCode.NOT_FOUND: NotFoundError,
    StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    StatusCode.ABORTED: AbortedError,
    StatusCode.UNIMPLEMENTED: UnimplementedError,
    StatusCode.INTERNAL: InternalError,
    StatusCode.UNAVAILABLE: UnavailableError,
    StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}


def from_status(code: int, message: str, retryable: bool) -> BytePSError:
    """The exception for a status of the library. A code that has no class of its own is a plain BytePSError."""
    return _CLASSES.get(code, BytePSError)(message, code, retryable)


def _rebuild(kind: type[BytePSError], message: str, code: int, retryable: bool) -> BytePSError:
    return kind(message, code, retryable)


# The name that users of Horovod catch.
HorovodInternalError = BytePSError


class HostsUpdatedInterrupt(RuntimeError):
    """The members of the job change: what an elastic function is interrupted by (byteps.elastic).

    Attributes:
        skip_sync: members were only removed, so those that go on are in the same state already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the members of the job change")
        self.skip_sync = skip_sync
