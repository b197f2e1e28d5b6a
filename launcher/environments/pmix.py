"""PMIx, by its library, which is loaded where a launcher has set PMIX_NAMESPACE. Nothing is linked."""

from __future__ import annotations

import ctypes
import glob
import os
import socket
import threading
import time
from collections.abc import Mapping

from ..failure import LaunchError

# Of pmix_common.h, alike in all releases since 2.0.
_NAMESPACE_BYTES = 256
_KEY_BYTES = 512
_GLOBAL = 3  # scope: for processes of all hosts
_BOOL, _STRING = 1, 3
_PLACES = (
    "/usr/lib/*/pmix*/lib/libpmix.so.2",
    "/usr/lib/*/libpmix.so.2",
    "/usr/lib64/libpmix.so.2",
    "/usr/local/lib*/libpmix.so.2",
    "/opt/pmix/lib*/libpmix.so.2",
    "/opt/*/lib*/libpmix.so.2",
)


class _Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * _NAMESPACE_BYTES), ("rank", ctypes.c_uint32)]


class _Data(ctypes.Union):
    # The largest member of the union, an environment variable, has three words.
    _fields_ = [
        ("flag", ctypes.c_bool),
        ("string", ctypes.c_char_p),
        ("uint32", ctypes.c_uint32),
        ("words", ctypes.c_uint64 * 3),
    ]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("data", _Data)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * _KEY_BYTES), ("flags", ctypes.c_uint32), ("value", _Value)]


def load(variables: Mapping[str, str]) -> ctypes.CDLL:
    """The library: BYTEPS_PMIX_LIBRARY, or where distributions and releases of Open MPI put it. LaunchError if there is
    none."""
    named = variables.get("BYTEPS_PMIX_LIBRARY")
    beside = [os.path.join(path, "libpmix.so.2") for path in variables.get("LD_LIBRARY_PATH", "").split(":") if path]  # noqa: PTH118
    found = [path for pattern in _PLACES for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    errors = []
    for path in [named] if named else ["libpmix.so.2", *beside, *found]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            errors.append(str(error))
    raise LaunchError(
        "PMIx has started this process (PMIX_NAMESPACE), but libpmix.so.2 does not load: "
        f"{errors[0]}; name it by BYTEPS_PMIX_LIBRARY"
    )


class PmixStore:
    """See exchange.Fenced."""

    # Open MPI's mpirun waits for a lost host after PMIx_Abort as it does after any other end.
    can_abort = False

    def __init__(self, variables: Mapping[str, str], rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._variables = variables
        self._library: ctypes.CDLL | None = None
        self._own = _Process()

    def put(self, key: str, value: str) -> None:
        """Offers a value; it leaves at the next fence."""
        data = _Value(_STRING)
        data.data.string = value.encode()
        self._call("PMIx_Put", ctypes.c_uint8(_GLOBAL), key.encode(), ctypes.byref(data))

    def fence(self, deadline: float) -> None:
        """Waits for all. PMIx knows no deadline here: the call goes on in a thread of its own."""
        self._call("PMIx_Commit")
        collect = _Info(b"pmix.collect")
        collect.value.type = _BOOL
        collect.value.data.flag = True
        results: list[LaunchError | None] = []

        def wait() -> None:
            try:
                self._call("PMIx_Fence", None, ctypes.c_size_t(0), ctypes.byref(collect), ctypes.c_size_t(1))
                results.append(None)
            except LaunchError as error:
                results.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))
        if not results:
            raise LaunchError(
                f"PMIx_Fence does not return: not all ranks have come to bps.init(); rank {self.rank} on "
                f"{socket.gethostname()} has"
            )
        if results[0] is not None:
            raise results[0]

    def get(self, key: str, rank: int) -> str:
        """What `rank` has put."""
        process = _Process(self._own.namespace, rank)
        found = ctypes.POINTER(_Value)()
        self._call("PMIx_Get", ctypes.byref(process), key.encode(), None, ctypes.c_size_t(0), ctypes.byref(found))
        value = found.contents
        if value.type != _STRING or value.data.string is None:
            raise LaunchError(f"PMIx_Get({key}): expected a string, found type {value.type}")
        return value.data.string.decode()

    def close(self) -> None:
        """Leaves; others that use PMIx in this process are counted."""
        if self._library is not None:
            self._call("PMIx_Finalize", None, ctypes.c_size_t(0))
            self._library = None

    def abort(self, code: int) -> None:
        """See exchange.Exchange."""
        raise NotImplementedError

    def _call(self, name: str, *arguments: object) -> None:
        if self._library is None:
            self._library = load(self._variables)
            self._call("PMIx_Init", ctypes.byref(self._own), None, ctypes.c_size_t(0))
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise LaunchError(f"{name} failed with status {status}")
