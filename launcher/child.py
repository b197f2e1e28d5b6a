"""One process of a job: what to start, its output, how it ended.

Each child leads a session of its own, so that a signal can reach it together with what it started, and a Ctrl-C at the
terminal reaches the launcher alone. The kernel kills it when its parent, the supervisor, dies.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO, cast

from . import process_tree
from .command import is_debugged
from .descriptor_limit import advice, restore_limit
from .failure import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from .guardian import WORKER_SIGNALS
from .output import LineSplitter, OutputFiles

_KEPT_LINES = 20
# How Python and the C++ runtime begin to tell of an exception that was not caught, and the last line of one.
_EXCEPTION = (b"Traceback (most recent call last)", b"terminate called after throwing")
# How the last line of an exception tells that another member is gone: by the code of the error, in Python and PyTorch,
# TensorFlow and JAX. MXNet's errors have no code, so there the coordinator's words count.
_LOSS = re.compile(
    rb"byteps\.errors\.UnavailableError: "
    rb"|tensorflow\.\S+\.UnavailableError: "
    rb"|jax\S+: UNAVAILABLE: "
    rb"|mxnet\.base\.MXNetError: .*(?: has left the session before the others: | is gone(?: without a goodbye)?: )"
)
CHUNK_BYTES = 64 * 1024  # of one read


class Role(enum.Enum):
    """What a process is in the job."""

    WORKER = "worker"
    SERVER = "server"
    COORDINATOR = "coordinator"
    HOST = "host"  # the connection to another host, and whatever runs there


@dataclasses.dataclass(frozen=True)
class ChildSpec:
    """What to start."""

    name: str  # "worker 0", "server 1", "coordinator"
    role: Role
    command: list[str]
    variables: dict[str, str]
    cpus: frozenset[int] | None = None  # None: wherever the launcher may run
    reads_stdin: bool = False
    piped_stdin: bool = False  # its standard input is a pipe of ours: Child.stdin
    descriptors: tuple[int, ...] = ()  # inherited under the same numbers
    leaves_first: bool = False  # a service that ends with 0 before the workers do has been told that its job is over
    enter: Callable[[], None] | None = None  # called in the child before its program: into namespaces, for instance


class Text:
    """What a process writes to one of its two output streams: cut into lines, and kept in a file where asked."""

    def __init__(self, descriptor: int, file: BinaryIO | None) -> None:
        self.descriptor = descriptor  # where its lines go: 1 or 2
        self._file = file
        self.file_error: OSError | None = None  # why the file was given up
        self._lines = LineSplitter()

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that `data` completes."""
        if self._file is not None:
            self._keep(self._file, data)
        return self._lines.feed(data, now)

    def _keep(self, file: BinaryIO, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            self._file = None
            self.file_error = error

    def close(self) -> list[bytes]:
        """Closes the file; the unfinished last line."""
        if self._file is not None:
            self._file.close()
        return self._lines.flush()


class Stream(Text):
    """One of the two output pipes of a child."""

    def __init__(self, pipe: IO[bytes], descriptor: int, file: BinaryIO | None) -> None:
        super().__init__(descriptor, file)
        os.set_blocking(pipe.fileno(), False)
        self.pipe = pipe

    def read(self, now: float) -> list[bytes] | None:
        """The lines that have come in; None at the end of the stream; BlockingIOError if nothing is there now."""
        data = os.read(self.pipe.fileno(), CHUNK_BYTES)
        return self.feed(data, now) if data else None

    def close(self) -> list[bytes]:
        """Closes pipe and file; the unfinished last line."""
        self.pipe.close()
        return super().close()


class Member:
    """A process of the job, wherever it runs: what the supervisor knows of it."""

    def __init__(self, spec: ChildSpec, now: float) -> None:
        self.spec = spec
        self.started = now
        self.tail: collections.deque[bytes] = collections.deque(maxlen=_KEPT_LINES)
        self.status: int | None = None  # as of subprocess: an exit code, or minus a signal's number
        self.told_to_end = False  # It was signalled, and had not begun to end.
        self.raised_at: float | None = None  # when it wrote the first line of its last exception
        self.silent_since: float | None = None  # of a host that was given up: its last sign of life

    def wrote(self, lines: Sequence[bytes], now: float) -> None:
        """Keeps its last lines, and when it raised an exception."""
        self.tail.extend(lines)
        if any(line.startswith(_EXCEPTION) for line in lines):
            self.raised_at = now

    @property
    def tells_of_a_loss(self) -> bool:
        """True if it ended by an error of BytePS that says that another member is gone."""
        return any(_LOSS.match(line) for line in self.tail)

    @property
    def alive(self) -> bool:
        """True until its end is known."""
        return self.status is None

    @property
    def ended_in_order(self) -> bool:
        """True if it has ended as it should: a worker whose work is done, a service whose job is over."""
        return self.status == 0 and (self.spec.role is Role.WORKER or self.spec.leaves_first)

    @property
    def exiting(self) -> bool:
        """True if it has begun to end and its end is not known yet."""
        return False

    @property
    def identity(self) -> str:
        """Its name, and where to find it."""
        return self.spec.name

    @property
    def label(self) -> str:
        """What stands in front of its output."""
        return self.spec.name

    def ended(self, status: int) -> None:
        """It has ended with this status."""
        self.status = status

    def signal(self, number: int) -> None:
        """Sends a signal to it and to what it started in its session."""
        raise NotImplementedError

    def pass_on(self, number: int) -> None:
        """Sends a signal that does not tell it to end to it alone: what it has started may not expect it."""
        raise NotImplementedError

    def exit_code(self) -> int:
        """What a shell would report."""
        assert self.status is not None
        return self.status if self.status >= 0 else 128 - self.status

    def ending(self) -> str:
        """How it ended, for people."""
        assert self.status is not None
        if self.status >= 0:
            return f"exited with code {self.status}"
        if self.status == -signal.SIGKILL:
            return "was killed by SIGKILL (a kill -9, or the kernel short of memory: see dmesg)"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"


class Child(Member):
    """A process that we have started. Owned by the supervisor, used on its only thread."""

    def __init__(self, spec: ChildSpec, now: float, files: OutputFiles | None) -> None:
        """Starts it; LaunchError if its program cannot be run."""
        super().__init__(spec, now)
        supervisor = os.getpid()

        def in_child() -> None:
            process_tree.die_with_parent(supervisor)
            if spec.cpus is not None:
                os.sched_setaffinity(0, spec.cpus)
            if spec.role is not Role.WORKER:
                for number in WORKER_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
            if spec.enter is not None:
                spec.enter()
            restore_limit()

        try:
            self._process = subprocess.Popen(
                spec.command,
                env=spec.variables,
                stdin=subprocess.PIPE if spec.piped_stdin else None if spec.reads_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=spec.descriptors,
                start_new_session=True,
                preexec_fn=in_child,
            )
        except FileNotFoundError:
            raise LaunchError(f"{spec.name}: no such program: {spec.command[0]}", EXIT_NOT_FOUND) from None
        except OSError as error:
            raise LaunchError(
                f"{spec.name}: cannot run {spec.command[0]}: {error.strerror}{advice(error)}", EXIT_NOT_EXECUTABLE
            ) from None
        except subprocess.SubprocessError as error:
            raise LaunchError(f"{spec.name}: cannot set up its process: {error}", 1) from None
        self.streams = [
            Stream(cast(IO[bytes], pipe), descriptor, None if files is None else files.open(spec.name, stream))
            for pipe, descriptor, stream in ((self._process.stdout, 1, "stdout"), (self._process.stderr, 2, "stderr"))
        ]

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end of its standard input, where its ChildSpec asks for one."""
        return self._process.stdin

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session and process group."""
        return self._process.pid

    @property
    def identity(self) -> str:
        """Its name and process id."""
        return f"{self.spec.name} (pid {self.pid})"

    @property
    def exiting(self) -> bool:
        """True if it has begun to end and was not reaped yet."""
        return self.alive and process_tree.exiting(self.pid)

    def ended(self, status: int) -> None:
        """It was reaped with this status."""
        super().ended(status)
        self._process.returncode = status

    def signal(self, number: int) -> None:
        """Sends a signal to it and to what it started in its session."""
        if self.alive:
            self.told_to_end = self.told_to_end or not self.exiting
            # A debugger that is told to end takes the signal for itself, and its program along, and fails.
            below = number != signal.SIGKILL and is_debugged(self.spec.command) and process_tree.descendants(self.pid)
            with contextlib.suppress(ProcessLookupError):
                if not below:
                    os.killpg(self.pid, number)
                for pid in below or ():
                    os.kill(pid, number)

    def pass_on(self, number: int) -> None:
        """Sends a signal that does not tell it to end to it alone; under a debugger to what that runs."""
        if self.alive:
            below = is_debugged(self.spec.command) and process_tree.descendants(self.pid)
            with contextlib.suppress(ProcessLookupError):
                for pid in below or (self.pid,):
                    os.kill(pid, number)

    def end_the_rest(self) -> None:
        """It has failed and was not reaped: kills what it has started in its session. Such a child, as those of data
        loaders, holds the connections of its parent, and the death would not be noticed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
