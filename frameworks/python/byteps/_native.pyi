"""abi/byteps.h with Python's values. What users call is in the package byteps; this is what its modules call.

Addresses are integers and must stay valid until the operation has ended; `buffers` is any object that keeps them
alive, held until then. Timeouts are in seconds; None means the library's default. Failures raise byteps.BytePSError.
"""

from collections.abc import Sequence
from typing import TypedDict

ABI_MAJOR: int
ABI_MINOR: int

INT8: int
INT16: int
INT32: int
INT64: int
UINT8: int
FLOAT16: int
FLOAT32: int
FLOAT64: int
BFLOAT16: int
COMPLEX64: int
COMPLEX128: int
BOOL: int

SUM: int
AVERAGE: int
MIN: int
MAX: int
PRODUCT: int
BIT_AND: int
BIT_OR: int
BIT_XOR: int
ADASUM: int

ALL_REDUCE: int
BROADCAST: int
ALL_GATHER: int
REDUCE_SCATTER: int
ALL_TO_ALL: int
REDUCE: int
GATHER: int
SCATTER: int
SEND: int
RECEIVE: int
BARRIER: int
CPU: int
CUDA: int
CUDA_HOST: int

class Info(TypedDict):
    rank: int
    size: int
    local_rank: int
    local_size: int
    num_servers: int
    transport: str
    scheduler: str
    failed: bool
    epoch: int
    generation: int
    shared_buffers: bool

class Request:
    @property
    def state(self) -> str: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def wait_on_stream(self, stream: int, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    def is_enqueued(self) -> bool: ...
    def result(self, index: int = 0) -> Result: ...
    def cancel(self) -> None: ...

class Array:
    """The memory of an array with the buffer protocol or DLPack, held until this is dropped."""

    def __init__(self, object: object, writable: bool) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

class Completions:
    """Operations that have ended, told through a descriptor that becomes readable."""

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def take(self) -> list[int]: ...

class Result:
    """What a collective has brought: its bytes by the buffer protocol, valid as long as this object."""

    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def splits(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...

class ProcessSet:
    def remove(self) -> None: ...

class Collective:
    """The arguments of bps_collective. `scale` is (before, after); output 0: the library's memory; `place`: where input
    and output are, if not on the host."""

    def __init__(
        self,
        kind: int,
        name: str | None = None,
        *,
        dtype: int = ...,
        shape: Sequence[int] = ...,
        input: int = 0,
        output: int = 0,
        output_bytes: int = 0,
        op: int = ...,
        splits: Sequence[int] = ...,
        root: int = 0,
        peer: int = 0,
        tag: int = 0,
        scale: tuple[float, float] | None = None,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout: float | None = None,
        place: DevicePlace | None = None,
    ) -> None: ...

class Buffer:
    """Zeroed memory of the library's, with the buffer protocol: memoryview(buffer)."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...

class DevicePlace:
    """Where the memory of an operation is: kinds (CPU, CUDA, CUDA_HOST), GPUs, and the stream that it is used in."""

    def __init__(
        self,
        input_device: int,
        input_id: int,
        output_device: int,
        output_id: int,
        stream: int,
        output_later: bool,
    ) -> None: ...

class PreparedPushPull:
    """push_pulls of the same name, dtype, shape and op."""

    def start(self, input: int, output: int, buffers: object, priority: int = 0) -> Request: ...

class Session:
    @property
    def address(self) -> int: ...  # of the bps_session; valid until close()
    def info(self) -> Info: ...
    def declare(self, name: str, dtype: int, shape: Sequence[int]) -> None: ...
    def push_pull(
        self,
        name: str,
        dtype: int,
        shape: Sequence[int],
        input: int,
        output: int,
        op: int,
        buffers: object,
        priority: int = 0,
        timeout: float | None = None,
        completions: Completions | None = None,
        token: int = 0,
        place: DevicePlace | None = None,
        asynchronous: bool = False,
    ) -> Request: ...
    def prepare_push_pull(self, name: str, dtype: int, shape: Sequence[int], op: int) -> PreparedPushPull: ...
    def broadcast(
        self,
        name: str,
        dtype: int,
        shape: Sequence[int],
        input: int,
        output: int,
        root: int,
        buffers: object,
        priority: int = 0,
        timeout: float | None = None,
        completions: Completions | None = None,
        token: int = 0,
        place: DevicePlace | None = None,
    ) -> Request: ...
    def collective(
        self, operation: Collective, buffers: object, completions: Completions | None = None, token: int = 0
    ) -> Request: ...
    def sparse_all_reduce(
        self,
        name: str,
        dtype: int,
        shape: Sequence[int],
        indices: int,
        values: int,
        rows: int,
        op: int = ...,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Request: ...
    # The next round of such an operation is used up without taking part: bps_give_up of abi/byteps.h.
    def give_up_push_pull(self, name: str, dtype: int, shape: Sequence[int], op: int, reason: str) -> Request: ...
    def give_up_collective(self, operation: Collective, reason: str) -> Request: ...
    def give_up_sparse_all_reduce(
        self, name: str, dtype: int, shape: Sequence[int], op: int, process_set: ProcessSet | None, reason: str
    ) -> Request: ...
    def group(self, operations: Sequence[Collective], buffers: object) -> Request: ...
    def process_set(self, ranks: Sequence[int], name: str = "") -> ProcessSet: ...
    def buffer(self, size: int, pinned: int | None = None) -> Buffer: ...
    def barrier(self, name: str | None = None, timeout: float | None = None) -> None: ...
    def join(self, timeout: float | None = None) -> int: ...
    def start_timeline(self, path: str, mark_steps: bool = False) -> None: ...
    def stop_timeline(self) -> None: ...
    def mark(self, name: str, kind: int) -> None: ...
    def shutdown(self, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...

class Library:
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def abi_version(self) -> tuple[int, int]: ...
    def open(
        self,
        *,
        coordinator: str | None = None,
        job: str | None = None,
        name: str | None = None,
        token: str | None = None,
        host: str | None = None,
        transport: str | None = None,
        scheduler: str | None = None,
        place: Sequence[int] | None = None,
        log_level: int = 0,
        timeout: float | None = None,
    ) -> Session: ...

def load(path: str) -> Library: ...
def wait_all(requests: Sequence[Request]) -> list[int]:
    """Waits for all, whatever becomes of one. The places of those that have failed: their wait() raises the error."""

def change_exit_status() -> None:
    """The exit status of this process is 1 where it would be 0."""
