"""PMI's wire protocol, version 1: lines of key=value on the descriptor PMI_FD. MPICH's Hydra and Slurm speak it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import socket
import stat
import struct
import termios
import time

from ..failure import LaunchError

_LONGEST = 1 << 16
_PIECE = 800  # Hydra and Slurm keep 1023 characters of a value, and say nothing of the rest.
_READ_SECONDS = 1.0  # for what this process has written last
_ABORT_SECONDS = 2.0  # for the launcher to end this process


class PmiStore:
    """See exchange.Fenced."""

    can_abort = True

    def __init__(self, descriptor: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._descriptor = descriptor
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._space = ""

    def put(self, key: str, value: str) -> None:
        """Offers a value, in as many pieces as it needs: their number stands before the first."""
        pieces = [value[start : start + _PIECE] for start in range(0, len(value), _PIECE)] or [""]
        for index, piece in enumerate([f"{len(pieces)}:{pieces[0]}", *pieces[1:]]):
            self._ask(f"cmd=put kvsname={self._name()} key={key}-{index} value={piece}", time.monotonic() + 60)

    def fence(self, deadline: float) -> None:
        """Waits for all."""
        self._ask("cmd=barrier_in", deadline)

    def get(self, key: str, rank: int) -> str:
        """What `rank` has put."""
        del rank  # all share one space
        count, _, first = self._get(f"{key}-0").partition(":")
        return "".join([first, *(self._get(f"{key}-{index}") for index in range(1, int(count)))])

    def _get(self, key: str) -> str:
        return self._ask(f"cmd=get kvsname={self._name()} key={key}", time.monotonic() + 60)["value"]

    def close(self) -> None:
        """Says goodbye: a process that ends without is taken for one that has crashed. Where this process uses MPI the
        connection is MPI's, too, which says goodbye itself."""
        if self._socket is not None:
            if not _mpi_is_open():
                self._ask("cmd=finalize", time.monotonic() + 60)
            self._socket.detach()  # the descriptor is not ours
            self._socket = None

    def abort(self, code: int) -> None:
        """See exchange.Exchange. Does not return where the launcher does as it is told."""
        if self._socket is None:
            return
        # The proxy of the launcher ends at once: what it has not read by then is lost.
        deadline = time.monotonic() + _READ_SECONDS
        while time.monotonic() < deadline and any(_unread(descriptor) for descriptor in (1, 2)):
            time.sleep(0.01)
        with contextlib.suppress(OSError):  # The launcher has ended, and we shall.
            self._socket.sendall(f"cmd=abort exitcode={code}\n".encode())
            select.select([self._socket], [], [], _ABORT_SECONDS)

    def _name(self) -> str:
        if not self._space:
            self._space = self._ask("cmd=get_my_kvsname", time.monotonic() + 60)["kvsname"]
        return self._space

    def _ask(self, line: str, deadline: float) -> dict[str, str]:
        if self._socket is None:
            self._socket = socket.socket(fileno=self._descriptor)
            self._ask("cmd=init pmi_version=1 pmi_subversion=1", deadline)
        try:
            self._socket.sendall(line.encode() + b"\n")
            answer = dict(word.partition("=")[::2] for word in self._line(line, deadline).split(" "))
        except OSError as error:
            raise LaunchError(
                f"PMI's connection is closed ({error.strerror}): the launcher of the job has ended, or another program "
                "of this rank has used the connection up: one program of each rank can call bps.init()"
            ) from None
        if answer.get("rc", "0") != "0":
            raise LaunchError(f"PMI refuses {line.split(' ')[0]}: {answer}")
        return answer

    def _line(self, asked: str, deadline: float) -> str:
        assert self._socket is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise LaunchError(
                    f"PMI does not answer {asked.split(' ')[0]}: not all ranks have come to bps.init(); rank "
                    f"{self.rank} on {socket.gethostname()} has"
                )
            data = self._socket.recv(_LONGEST)
            if not data:
                raise LaunchError("PMI has closed its connection: the launcher of the job has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def _mpi_is_open() -> bool:
    """Whether this process has called MPI_Init, and not MPI_Finalize: mpi4py, for instance."""
    with contextlib.suppress(OSError):
        mapped = pathlib.Path("/proc/self/maps").read_text(errors="replace").split()
        for path in sorted({word for word in mapped if pathlib.PurePath(word).name.startswith("libmpi")}):
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(path, os.RTLD_NOLOAD)
                begun, ended = ctypes.c_int(), ctypes.c_int()
                library.MPI_Initialized(ctypes.byref(begun))
                library.MPI_Finalized(ctypes.byref(ended))
                if begun.value and not ended.value:
                    return True
    return False


def _unread(descriptor: int) -> bool:
    """Whether this is a pipe, and its reader has not read all of it."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0] > 0
    except OSError:
        return False
