"""`bpslaunch --companion PID`: the coordinator and servers beside the worker PID; see companion.py.

It ends when they have ended. When the worker is gone, it tells the coordinator not to linger, by the end of a pipe: no
signal of a batch system is taken for that, and none comes too soon. The coordinator then ends with the last session of
the job, and the servers with it. Servers beside a process that is no worker (an actor of Ray) end with it at once.

Where a launcher is known, it is watched until all of its workers on this host have ended (launched_workers.py): one
that was killed cannot end them, so this process does; the others of the job hear of it by their sessions. That may be
all there is to do here: a host needs no server.

Threads: one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from typing import Any

from .. import process_tree
from ..affinity import servers_by_hand, union_of
from ..child import Child, ChildSpec, Role, Stream
from ..command import in_debugger
from ..environment import Environment
from ..failure import LaunchError
from ..guardian import SIGNALS, WORKER_SIGNALS
from ..installation import server_binary, with_plugins_of_checkout
from ..lanes import lanes
from ..listener import listen
from ..outbox import Outbox
from ..output import Printer
from ..system_calls import pidfd_open
from .launched_workers import LaunchedWorkers
from .launcher_process import LauncherProcess

_KILL_SECONDS = 5.0
_MOST_WAITING = 256 * 1024  # bytes of output that its reader has not taken; what comes then is not shown
_LAST_OUTPUT_SECONDS = 1.0


class CompanionProcess:
    """The far side of a companion."""

    def __init__(self, worker: int, printer: Printer) -> None:
        self._worker = worker
        self._printer = printer
        self._selector = selectors.DefaultSelector()
        self._shown = Outbox(2, self._selector, lambda _: None, shared=True)
        self._children: list[Child] = []
        self._with_worker = True  # whether the process beside us is a worker
        self._kill_at: float | None = None  # of our own processes
        self._linger: int | None = None  # our end of a pipe: the coordinator lingers while it is open
        self._worker_descriptor: int | None = None
        self._launched: LaunchedWorkers | None = None  # None: no launcher is known

    def run(self) -> int:
        """Serves until all have ended."""
        process_tree.become_subreaper()
        self._watch_signals()
        line = sys.stdin.buffer.readline()
        if not line:
            return 0  # The worker has ended before it asked.
        request = json.loads(line)
        self._watch_worker()
        if request["launcher"] is not None:
            launcher = LauncherProcess(**request["launcher"])
            self._launched = LaunchedWorkers(launcher, self._worker, self._selector, self._say)
        try:
            answer: dict[str, Any] = {"port": self._start(request)}
        except LaunchError as error:
            answer = {"failed": str(error)}
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(answer).encode() + b"\n")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        while any(child.alive for child in self._children) or (self._launched is not None and self._launched.alive):
            self._step()
        process_tree.end_descendants(time.monotonic() + _KILL_SECONDS)
        self._shown.drain(time.monotonic() + _LAST_OUTPUT_SECONDS)
        return 0

    def _start(self, request: dict[str, Any]) -> int:
        if request["address"] is None and not request["servers"]:
            return 0
        environment = Environment(with_plugins_of_checkout({**os.environ, **request["variables"]}))
        binary = in_debugger([server_binary(environment)], environment)
        variables = {**environment.variables(), "BYTEPS_JOB_LINGER": "-1", "BYTEPS_LAUNCHER_PID": str(os.getppid())}
        port = 0
        specs = []
        if request["address"] is not None:
            listener = listen((2, request["address"]), 0)
            port = listener.getsockname()[1]
            variables["DMLC_PS_ROOT_URI"], variables["DMLC_PS_ROOT_PORT"] = request["address"], str(port)
            descriptor = os.dup(listener.fileno())
            listener.close()
            theirs, self._linger = os.pipe()
            own = {**variables, "DMLC_ROLE": "scheduler"}
            own.update(BYTEPS_COORDINATOR_FD=str(descriptor), BYTEPS_LINGER_FD=str(theirs))
            specs.append(ChildSpec("coordinator", Role.COORDINATOR, binary, own, descriptors=(descriptor, theirs)))
        self._with_worker = request["workers"] > 0 or not request["servers"]
        cores = servers_by_hand(environment, len(request["servers"]), here=True)
        threads = lanes(len(request["servers"]), environment, union_of(cores)) if request["workers"] else None
        for rank, cpus in zip(request["servers"], cores):
            own = {**variables, "DMLC_ROLE": "server", "DMLC_RANK": str(rank)}
            if threads is not None:
                own["BYTEPS_SERVER_ENGINE_THREAD"] = str(threads)
            specs.append(ChildSpec(f"server {rank}", Role.SERVER, binary, own, cpus=cpus))
        for spec in specs:
            child = Child(spec, time.monotonic(), None)
            self._children.append(child)
            for stream in child.streams:
                self._selector.register(
                    stream.pipe,
                    selectors.EVENT_READ,
                    lambda child=child, stream=stream: self._read(child, stream),
                )
            for descriptor in spec.descriptors:
                os.close(descriptor)
        return port

    # ---- Events ----

    def _step(self) -> None:
        of_launched = None if self._launched is None else self._launched.deadline
        deadlines = [when for when in (self._kill_at, of_launched) if when is not None]
        for key, _ in self._selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None):
            key.data()
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal(signal.SIGKILL)
        if self._launched is not None:
            self._launched.step(now)
        self._reap()

    def _watch_signals(self) -> None:
        read, write = os.pipe()
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda _number, _frame: self._end())
        for number in WORKER_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

        def empty() -> None:
            with contextlib.suppress(BlockingIOError):
                while os.read(read, 1024):
                    pass

        self._selector.register(read, selectors.EVENT_READ, empty)

    def _watch_worker(self) -> None:
        self._selector.register(0, selectors.EVENT_READ, self._worker_ended)
        with contextlib.suppress(OSError):
            self._worker_descriptor = pidfd_open(self._worker)
            self._selector.register(self._worker_descriptor, selectors.EVENT_READ, self._worker_ended)

    def _worker_ended(self) -> None:
        for descriptor in (0, self._worker_descriptor):
            with contextlib.suppress(KeyError, ValueError):
                if descriptor is not None:
                    self._selector.unregister(descriptor)
        if not self._with_worker:
            self._end()
            return
        if self._linger is not None:
            os.close(self._linger)
            self._linger = None

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        self._kill_at = time.monotonic() + _KILL_SECONDS

    def _signal(self, number: int) -> None:
        for child in self._children:
            child.signal(number)

    def _reap(self) -> None:
        by_pid = {child.pid: child for child in self._children if child.alive}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                child = by_pid.get(found[0])
                if child is None:
                    continue
                child.ended(os.waitstatus_to_exitcode(found[1]))
                for stream in child.streams:
                    while not stream.pipe.closed and self._read(child, stream):
                        pass
                if child.status != 0 and not child.told_to_end:
                    self._say(f"{child.spec.name} beside worker {self._worker} {child.ending()}")

    def _read(self, child: Child, stream: Stream) -> bool:
        try:
            lines = stream.read(time.monotonic())
        except BlockingIOError:
            return False
        if lines is None:
            self._selector.unregister(stream.pipe)
            lines = stream.close()
        if self._shown.size < _MOST_WAITING:
            self._shown.send(self._printer.text(child.spec.name, 2, lines))
        return not stream.pipe.closed

    def _say(self, text: str) -> None:
        self._shown.send(self._printer.message(text))
