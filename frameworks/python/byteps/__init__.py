"""BytePS: gradient communication for data-parallel training.

Workers hand tensors to CPU servers that sum them, and get the sum back. Frameworks have their own module::

    import byteps.torch as bps

This one has what they share, and imports none of them.
"""

from byteps.basics import (
    SessionInfo,
    barrier,
    buffer,
    info,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from byteps.errors import (
    AbortedError,
    AlreadyExistsError,
    BytePSError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotInitializedError,
    ResourceExhaustedError,
    StatusCode,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from byteps.library import LIBRARY as _LIBRARY
from byteps.objects import broadcast_object
from byteps.reduce_op import Average, Max, Min, Product, ReduceOp, Sum
from byteps.runner import WorkerError, run

__version__ = _LIBRARY.version

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Average",
    "BytePSError",
    "CancelledError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "NotFoundError",
    "NotInitializedError",
    "Product",
    "ReduceOp",
    "ResourceExhaustedError",
    "SessionInfo",
    "StatusCode",
    "Sum",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "WorkerError",
    "__version__",
    "barrier",
    "broadcast_object",
    "buffer",
    "info",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "run",
    "shutdown",
    "size",
]
