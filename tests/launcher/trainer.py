"""A trainer without a framework: sums one tensor again and again through the C ABI, and checks every sum.

    trainer.py ROUNDS ELEMENTS

Prints "rank R of S, local L of N, pid P", then "round I" after each, then "done". ROUNDS 0: for ever. An error of
BytePS goes to stderr as "error CODE: MESSAGE", and the exit code is 3. With TRAINER_FORKS=1 it forks a child once it
has joined, as data loaders do, which never ends: "forked PID". While the file that TRAINER_PAUSE names is there, it
rests between two rounds.
"""

from __future__ import annotations

import array
import ctypes
import os
import pathlib
import sys
import time
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

FLOAT32 = 2 | 32 << 8 | 1 << 16


class OpenArgs(ctypes.Structure):
    """bps_open_args; the trainer leaves all to the environment."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("ext", c_void_p),
        *[(name, c_char_p) for name in ("coordinator", "job", "name", "token", "host", "transport", "scheduler")],
        *[(name, c_int32) for name in ("has_place", "host_index", "num_hosts", "local_rank", "local_size")],
        ("num_servers", c_int32),
        ("log_level", c_int32),
        ("timeout_ms", c_int64),
        ("log", c_void_p),
        ("log_user", c_void_p),
    ]


class Info(ctypes.Structure):
    """bps_info."""

    _fields_ = [
        ("struct_size", c_size_t),
        *[(name, c_int32) for name in ("rank", "size", "local_rank", "local_size", "num_servers", "failed")],
        ("epoch", c_uint64),
        ("generation", c_uint64),
        ("shared_buffers", c_int32),
        ("reserved", c_int32),
    ]


class DeclareArgs(ctypes.Structure):
    """bps_declare_args."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("ext", c_void_p),
        ("name", c_char_p),
        ("shape", ctypes.POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_uint32),
        ("mode", c_int32),
        ("staleness", c_int32),
    ]


class PushPullArgs(ctypes.Structure):
    """bps_push_pull_args."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("ext", c_void_p),
        ("tensor", c_void_p),
        ("input", c_void_p),
        ("output", c_void_p),
        ("priority", c_int64),
        *[(name, c_int32) for name in ("op", "input_device", "input_device_id", "output_device", "output_device_id")],
        ("reserved", c_int32),
        ("timeout_ms", c_int64),
        ("done", c_void_p),
        ("user", c_void_p),
    ]


class Library:
    """libbyteps.so of BYTEPS_LIBRARY; an error ends the process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["BYTEPS_LIBRARY"])
        self._library.bps_status_message.restype = c_char_p

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name)
        function.restype = c_void_p
        status = c_void_p(function(*arguments))
        if status:
            code = self._library.bps_status_code(status)
            message = self._library.bps_status_message(status).decode()
            print(f"error {code}: {message}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)

    def release(self, name: str, handle: c_void_p) -> None:
        function = getattr(self._library, name)
        function.restype = None
        function(handle)


def make(kind: type) -> ctypes.Structure:
    arguments = kind()
    arguments.struct_size = ctypes.sizeof(kind)
    return arguments


def main() -> None:
    rounds, elements = int(sys.argv[1]), int(sys.argv[2])
    pause = pathlib.Path(os.environ["TRAINER_PAUSE"]) if "TRAINER_PAUSE" in os.environ else None
    library = Library()
    session = c_void_p()
    library.call("bps_open_versioned", 1, 0, ctypes.byref(make(OpenArgs)), ctypes.byref(session))
    info = make(Info)
    library.call("bps_session_info", session, ctypes.byref(info))
    place = f"rank {info.rank} of {info.size}, local {info.local_rank} of {info.local_size}"
    print(f"{place}, pid {os.getpid()}", flush=True)

    if os.environ.get("TRAINER_FORKS") == "1":
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(1000)
        print(f"forked {child}", flush=True)

    declare = make(DeclareArgs)
    declare.name = b"x"
    declare.shape = (c_int64 * 1)(elements)
    declare.ndim = 1
    declare.dtype = FLOAT32
    tensor = c_void_p()
    library.call("bps_declare", session, ctypes.byref(declare), ctypes.byref(tensor))

    step = 0
    while rounds == 0 or step < rounds:
        values = array.array("f", [info.rank + step % 100]) * elements
        result = array.array("f", [0]) * elements
        push_pull = make(PushPullArgs)
        push_pull.tensor = tensor
        push_pull.input = values.buffer_info()[0]
        push_pull.output = result.buffer_info()[0]
        request = c_void_p()
        library.call("bps_push_pull", session, ctypes.byref(push_pull), ctypes.byref(request))
        library.call("bps_wait", request, c_int64(0))
        library.release("bps_request_free", request)
        expected = sum(rank + step % 100 for rank in range(info.size))
        if result != array.array("f", [expected]) * elements:
            sys.exit(f"wrong sum: {result[0]} in place of {expected}")
        print(f"round {step}", flush=True)
        step += 1
        while pause is not None and pause.exists():
            time.sleep(0.05)
    library.call("bps_shutdown", session, c_int64(0))
    library.release("bps_close", session)
    print("done", flush=True)


if __name__ == "__main__":
    main()
