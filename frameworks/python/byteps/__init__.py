"""BytePS: gradient communication for data-parallel training.

Workers hand tensors to CPU servers that sum them, and get the sum back. Frameworks have their own module::

    import byteps.torch as bps

This one has what they share, and imports none of them. It reduces NumPy's arrays, and whatever has the buffer protocol
or DLPack::

    byteps.init()
    mean = byteps.push_pull(array)
"""

from byteps import _main_interpreter  # noqa: F401  (first)
from byteps.array_session import ArraySession, open_session
from byteps.arrays import broadcast, broadcast_async, push_pull, push_pull_async
from byteps.basics import (
    SessionInfo,
    barrier,
    buffer,
    get_pushpull_speed,
    info,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from byteps.errors import (
    AbortedError,
    AlreadyExistsError,
    BytePSError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
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
from byteps.features import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from byteps.library import LIBRARY as _LIBRARY
from byteps.objects import broadcast_object
from byteps.operation import Operation
from byteps.reduce_op import Adasum, Average, BitAnd, BitOr, BitXor, Max, Min, Product, ReduceOp, Sum
from byteps.runner import WorkerError, run
from byteps.sparse import SparseOperation, sparse_push_pull, sparse_push_pull_async

__version__ = _LIBRARY.version

__all__ = [
    "AbortedError",
    "Adasum",
    "AlreadyExistsError",
    "ArraySession",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "BytePSError",
    "CancelledError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "InternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "NotFoundError",
    "NotInitializedError",
    "Operation",
    "Product",
    "ReduceOp",
    "ResourceExhaustedError",
    "SessionInfo",
    "SparseOperation",
    "StatusCode",
    "Sum",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "WorkerError",
    "__version__",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "buffer",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "info",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "open_session",
    "push_pull",
    "push_pull_async",
    "rank",
    "resume",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "sparse_push_pull",
    "sparse_push_pull_async",
    "start_timeline",
    "stop_timeline",
    "suspend",
]
