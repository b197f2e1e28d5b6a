"""What a trainer asks of libbyteps (abi/byteps.h), on memory that is named by its address, without a framework.

    session = Session()
    tensor = session.declare("w", FLOAT32, 1000)
    request = session.push_pull(tensor, address, address, gpu=0, stream=stream)
    request.wait_on_stream(stream)
    session.close()

Errors: BytePSError, with the code and the message of the status.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

INT8, UINT8, INT32, INT64 = 0x10800, 0x10801, 0x12000, 0x14000
FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = 0x11002, 0x12002, 0x14002, 0x11004
SUM, AVERAGE = 0, 1
FAILED_PRECONDITION, UNIMPLEMENTED = 9, 12
_MAJOR, _MINOR = 1, 3
_CUDA = 2
_EXT_STREAMS, _EXT_CAST = 1, 2
# Of an operation; less than a step has, so that the library's own words are in its log.
TIMEOUT_MS = int(os.environ.get("GPU_CHECK_TIMEOUT_MS", "40000"))

_P, _I32, _I64, _U32, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_size_t


class BytePSError(RuntimeError):
    """A call or an operation that has failed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"code {code}: {message}")
        self.code = code


class _OpenArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        ("pointers", _P * 8),  # ext, coordinator, job, name, token, host, transport, scheduler
        ("numbers", _I32 * 7),
        ("timeout_ms", _I64),
        ("log", _P),
        ("log_user", _P),
    )


class _Info(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        *((name, _I32) for name in ("rank", "size", "local_rank", "local_size", "num_servers", "failed")),
        ("epoch", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
    )


class _DeclareArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        ("ext", _P),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(_I64)),
        ("ndim", _I32),
        ("dtype", _U32),
        ("mode", _I32),
        ("staleness", _I32),
    )


class _Streams(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        ("type", _U32),
        ("flags", _U32),
        ("next", _P),
        ("input", _P),
        ("output", _P),
        ("output_later", _I32),
        ("reserved", _I32),
    )


class _Cast(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        ("type", _U32),
        ("flags", _U32),
        ("next", _P),
        ("dtype", _U32),
        ("reserved", _U32),
    )


class _PushPullArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE),
        ("ext", _P),
        ("tensor", _P),
        ("input", _P),
        ("output", _P),
        ("priority", _I64),
        ("op", _I32),
        ("input_device", _I32),
        ("input_device_id", _I32),
        ("output_device", _I32),
        ("output_device_id", _I32),
        ("reserved", _I32),
        ("timeout_ms", _I64),
        ("done", _P),
        ("user", _P),
        ("done_in_call", _I32),
        ("reserved2", _I32),
    )


def path() -> Path:
    """Where the library is: BYTEPS_LIBRARY, else as the package byteps has it."""
    named = os.environ.get("BYTEPS_LIBRARY")
    if named:
        return Path(named)
    return Path(os.environ["GPU_CHECK_SITE"]) / "byteps" / "lib" / "libbyteps.so"


class Request:
    """An operation under way; free() when it is no longer asked for."""

    def __init__(self, session: Session, handle: int) -> None:
        self._session = session
        self._handle = _P(handle)

    def wait(self, timeout_ms: int = 0) -> None:
        """Until it has ended; raises its error."""
        self._session.check(self._session.library.bps_wait(self._handle, _I64(timeout_ms)))

    def wait_on_stream(self, stream: int, timeout_ms: int = 0) -> None:
        """The stream waits for the result, and the host until that is possible."""
        self._session.check(self._session.library.bps_wait_on_stream(self._handle, _P(stream), _I64(timeout_ms)))

    def free(self) -> None:
        """The handle; the operation goes on."""
        self._session.library.bps_request_free(self._handle)


class Session:
    """The membership of this process, by the variables that bpslaunch has set."""

    def __init__(self) -> None:
        self.library = library = ctypes.CDLL(str(path()))
        for name in ("bps_open_versioned", "bps_session_info", "bps_declare", "bps_push_pull", "bps_wait"):
            getattr(library, name).restype = _P
        for name in ("bps_wait_on_stream", "bps_shutdown", "bps_close", "bps_barrier"):
            getattr(library, name).restype = _P
        library.bps_status_message.restype = library.bps_transport_name.restype = ctypes.c_char_p
        args = _OpenArgs(struct_size=ctypes.sizeof(_OpenArgs))
        self._session = _P()
        self.check(
            library.bps_open_versioned(_I32(_MAJOR), _I32(_MINOR), ctypes.byref(args), ctypes.byref(self._session))
        )
        info = _Info(struct_size=ctypes.sizeof(_Info))
        self.check(library.bps_session_info(self._session, ctypes.byref(info)))
        self.rank, self.size, self.local_rank = int(info.rank), int(info.size), int(info.local_rank)
        self.num_servers = int(info.num_servers)
        self.transport = library.bps_transport_name(self._session).decode()
        self._tensors: dict[tuple[str, int, int], int] = {}

    def check(self, status: int | None) -> None:
        """Raises what a call has answered."""
        if status is None:
            return
        code = self.library.bps_status_code(_P(status))
        message = self.library.bps_status_message(_P(status)).decode()
        self.library.bps_status_free(_P(status))
        raise BytePSError(code, message)

    def declare(self, name: str, dtype: int, count: int) -> int:
        """The handle of a tensor of one dimension."""
        key = (name, dtype, count)
        if key not in self._tensors:
            shape = (_I64 * 1)(count)
            args = _DeclareArgs(
                struct_size=ctypes.sizeof(_DeclareArgs), name=name.encode(), shape=shape, ndim=1, dtype=dtype
            )
            made = _P()
            self.check(self.library.bps_declare(self._session, ctypes.byref(args), ctypes.byref(made)))
            assert made.value is not None
            self._tensors[key] = made.value
        return self._tensors[key]

    def push_pull(
        self,
        tensor: int,
        source: int,
        target: int,
        *,
        gpu: int | None = None,
        stream: int = 0,
        output_stream: int | None = None,
        output_later: bool = True,
        memory_dtype: int = 0,
        op: int = SUM,
        priority: int = 0,
    ) -> Request:
        """`gpu`: whose memory it is; None: the host's. `memory_dtype`: what it holds, if not the tensor's own type."""
        args = _PushPullArgs(struct_size=ctypes.sizeof(_PushPullArgs), tensor=tensor, input=source, output=target)
        args.op, args.priority, args.timeout_ms = op, priority, TIMEOUT_MS
        kept: list[Any] = []
        if gpu is not None:
            args.input_device = args.output_device = _CUDA
            args.input_device_id = args.output_device_id = gpu
            streams = _Streams(struct_size=ctypes.sizeof(_Streams), type=_EXT_STREAMS, input=stream)
            streams.output = stream if output_stream is None else output_stream
            streams.output_later = 1 if output_later else 0
            kept.append(streams)
            args.ext = ctypes.addressof(streams)
        if memory_dtype != 0:
            cast = _Cast(struct_size=ctypes.sizeof(_Cast), type=_EXT_CAST, dtype=memory_dtype, next=args.ext)
            kept.append(cast)
            args.ext = ctypes.addressof(cast)
        made = _P()
        self.check(self.library.bps_push_pull(self._session, ctypes.byref(args), ctypes.byref(made)))
        assert made.value is not None
        return Request(self, made.value)

    def close(self) -> None:
        """Leaves in order."""
        self.check(self.library.bps_shutdown(self._session, _I64(20_000)))
        self.check(self.library.bps_close(self._session))
