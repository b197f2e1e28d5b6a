"""System calls that Python has only where it was built with headers that know them: those of conda, among others, lack
some. The C library and the kernel have them all the same."""

from __future__ import annotations

import ctypes
import os
import signal

# The same on every architecture.
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434
_MFD_CLOEXEC = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), call)
    return result


def memfd_create(name: str) -> int:
    """A file of memory, which is closed at exec. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    return _checked(_libc.memfd_create(name.encode(), ctypes.c_uint(_MFD_CLOEXEC)), "memfd_create")


def pidfd_open(pid: int) -> int:
    """A descriptor of a process, which can be read when it has ended. Raises OSError; ENOSYS: Linux before 5.3."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(_libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_long(pid), ctypes.c_long(0)), "pidfd_open")


def pidfd_send_signal(descriptor: int, number: int) -> None:
    """Sends a signal to the process of pidfd_open(). Raises OSError."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(descriptor, number)
        return
    words = (_PIDFD_SEND_SIGNAL, descriptor, number, 0, 0)
    _checked(_libc.syscall(*(ctypes.c_long(word) for word in words)), "pidfd_send_signal")
