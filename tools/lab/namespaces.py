"""Network, IPC and UTS namespaces: what makes a process believe that it is on a host of its own.

    namespaces = Namespaces.make("server0")
    subprocess.Popen(command, preexec_fn=namespaces.enter)
    namespaces.close()

Without a network of its own (`make(name, network=other)`) a host is like a container of one machine that uses the
network of another: it shares no memory with it, but its interfaces.

They are held by descriptors, never by names in the file system, so the end of the last process that holds or uses them
is their end, a SIGKILL included. `ip netns` is not used: it mounts, which a chroot may not.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

# Loaded here, not after fork: the dynamic loader takes locks.
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


class Namespaces:
    """The three namespaces of one host."""

    _KINDS = (("net", _CLONE_NEWNET), ("ipc", _CLONE_NEWIPC), ("uts", _CLONE_NEWUTS))

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors

    @classmethod
    def make(cls, hostname: str, network: Namespaces | None = None) -> Namespaces:
        """New ones, but for the network where one is given; OSError (EPERM) without the right to."""
        kinds = [(kind, flag) for kind, flag in cls._KINDS if network is None or kind != "net"]
        ready, tell_ready = os.pipe()
        done, tell_done = os.pipe()
        # A child makes them, since unshare() would change this process, too; it lives until we hold them.
        child = os.fork()
        if child == 0:
            os.close(tell_done)
            failed = _libc.unshare(sum(flag for _, flag in kinds)) != 0
            failed = failed or _libc.sethostname(hostname.encode(), len(hostname.encode())) != 0
            code = ctypes.get_errno() or 1 if failed else 0
            os.write(tell_ready, bytes([min(code, 255)]))
            os.read(done, 1)
            os._exit(0)
        os.close(tell_ready)
        os.close(done)
        try:
            answer = os.read(ready, 1)
            if answer != b"\0":
                error = answer[0] if answer else 1
                raise OSError(error, f"cannot make namespaces: {os.strerror(error)}")
            folder = Path(f"/proc/{child}/ns")
            descriptors = {kind: os.open(folder / kind, os.O_RDONLY | os.O_CLOEXEC) for kind, _ in kinds}
            if network is not None:
                descriptors["net"] = os.dup(network._descriptors["net"])
            return cls(descriptors)
        finally:
            os.close(ready)
            os.close(tell_done)
            os.waitpid(child, 0)

    def enter(self) -> None:
        """Moves the calling process, which must have one thread, into them. For a child between fork and exec."""
        for kind, flag in self._KINDS:
            _check(_libc.setns(self._descriptors[kind], flag), f"setns {kind}")

    @property
    def network(self) -> str:
        """A path by which `ip link ... netns PATH` finds the network namespace."""
        return f"/proc/{os.getpid()}/fd/{self._descriptors['net']}"

    def close(self) -> None:
        """Lets go of them."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


def die_with_parent(parent: int) -> None:
    """In a new child: have the kernel kill us with SIGKILL when `parent`, which started us, ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # It ended before the call above.
        os.kill(os.getpid(), signal.SIGKILL)
