"""The far side of a job over several hosts: `bpslaunch --agent`, which ssh starts on each of them.

It decides nothing: it starts what it is told to, passes output on, reports ends, and sends signals. When the launcher
is gone (the end of its standard input, silence, the death of its guardian), it ends all that it has started: SIGTERM,
and SIGKILL three seconds later. So nothing stays behind on this host whatever becomes of bpslaunch, of ssh or of the
network between them. A signal to itself, as Slurm sends it, ends all as well; then it is --kill-after that counts, as
long as the launcher is there. Why it ends is reported before the ends that follow from it.

Threads: one; what may wait for a name server, or for a network that drops, has one of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .. import process_tree
from ..addresses import resolve, why_unreachable
from ..affinity import CorePlan, assign
from ..child import CHUNK_BYTES, Child, ChildSpec, Role, Stream
from ..command import in_debugger, worker_command
from ..descriptor_limit import raise_limit
from ..environment import PLACES, Environment
from ..environments.addresses import own_networks
from ..failure import LaunchError
from ..guardian import SIGNALS, KillAfter, guarded
from ..host_identity import this_host
from ..installation import installed_release, server_binary, with_plugins_of_checkout
from ..job_folder import JobFolder
from ..lanes import lanes
from ..listener import listen
from ..outbox import Outbox
from ..output import Printer
from ..system_calls import memfd_create
from ..worker_signals import WorkerSignals
from ..workers import local_workers
from . import frame

_ALONE_SECONDS = 3.0  # from SIGTERM to SIGKILL, when no launcher is left
_FLUSH_SECONDS = 1.0
_MEASURE_SECONDS = 1.0

Result = TypeVar("Result")


class Agent:
    """Serves the bpslaunch that started it, over `source` and `sink`."""

    def __init__(
        self,
        source: int,
        sink: int,
        lifeline: int,
        folder: JobFolder | None = None,
        kill_after: KillAfter | None = None,
    ) -> None:
        """`lifeline` is a pipe that ends when the guardian does; `folder`, for the job's token, is removed then;
        `kill_after` is how the guardian learns of it."""
        self._source = source
        self._selector = selectors.DefaultSelector()
        self._outbox = Outbox(sink, self._selector, lambda _: self._left_alone())
        self._decoder = frame.Decoder(greeted=True)
        self._children: dict[int, Child] = {}
        self._listener: socket.socket | None = None
        self._sink: Any = None  # of type ProbeSink, once others shall measure
        self._heard = time.monotonic()
        self._next_beat = 0.0
        self._untaken = {1: 0, 2: 0}  # by descriptor: bytes of output that bpslaunch has not taken yet
        self._held_back: set[int] = set()  # descriptors of which that is so much that we read no more
        self._over = False
        self._refused = False
        self._kill_at: float | None = None  # all was told to end, and this is when what is left is killed
        self._alone = False  # there is no launcher, or nobody in front of us
        self._lifeline = lifeline
        self._folder = folder
        self._token_file: str | None = None
        self._kill_after = KillAfter() if kill_after is None else kill_after
        self._signals: list[int] = []
        self._for_workers = WorkerSignals()

    def run(self) -> int:
        """Serves until all is over; the exit code of the agent."""
        process_tree.become_subreaper()
        raise_limit()
        self._watch_signals()
        self._selector.register(self._source, selectors.EVENT_READ, self._hear)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._guardian_died)
        self._outbox.send(frame.GREETING)
        try:
            while not self._over:
                self._step()
        finally:
            process_tree.end_descendants(time.monotonic() + _ALONE_SECONDS)
        self._outbox.drain(time.monotonic() + _FLUSH_SECONDS)
        return 0 if self._kill_at is None else 1

    def _step(self) -> None:
        now = began = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + frame.BEAT_SECONDS
            self._outbox.send(frame.message(event="beat"))
        wakes = [self._next_beat]
        if self._kill_at is not None:
            wakes.append(self._kill_at)
        if not self._alone:
            wakes.append(self._heard + frame.SILENCE_SECONDS)
        for key, _ in self._selector.select(max(0.0, min(wakes) - now)):
            key.data()
        while self._signals:
            self._signalled(self._signals.pop(0))
        for number in self._for_workers.take():
            for child in self._children.values():
                if child.spec.role is Role.WORKER:
                    child.pass_on(number)
        self._reap()
        self._balance()
        now = time.monotonic()
        if now - began > frame.BEAT_SECONDS + frame.STOPPED_SECONDS:
            self._heard = now
        if not self._alone and now >= self._heard + frame.SILENCE_SECONDS:
            text = f"has not heard of bpslaunch for {frame.SILENCE_SECONDS:g} s, and has ended its processes"
            self._end_alone(1, text)
        if self._kill_at is not None:
            self._over = now >= self._kill_at or not any(child.alive for child in self._children.values())

    # ---- Events ----

    def _watch_signals(self) -> None:
        read, write = os.pipe()
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        self._for_workers.watch()
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

        def empty() -> None:
            with contextlib.suppress(BlockingIOError):
                while os.read(read, 1024):
                    pass

        self._selector.register(read, selectors.EVENT_READ, empty)

    def _left_alone(self) -> None:
        """The launcher is gone, or the way to it."""
        self._end_alone()

    def _guardian_died(self) -> None:
        self._end_alone(128 + signal.SIGKILL, "was lost: the process in front of its agent was killed")

    def _end_alone(self, code: int = 0, text: str | None = None) -> None:
        self._alone = True
        for descriptor in (self._source, self._lifeline):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._end(_ALONE_SECONDS, code, text)

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        self._end(
            self._kill_after.get(), 128 + number, f"was told to end by {name} (scancel, a time limit, a shutdown)"
        )

    def _end(self, seconds: float, code: int = 0, text: str | None = None) -> None:
        """Begins to end what runs here; `seconds` later it is killed. `text`: why, if there is anyone to hear it. Where
        that has begun already, it may get shorter."""
        kill_at = time.monotonic() + seconds
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)
            return
        self._kill_at = kill_at
        if text is not None:
            self._report("ending", code=code, text=text)
        for child in self._children.values():
            child.signal(signal.SIGTERM)

    def _hear(self) -> None:
        data = os.read(self._source, CHUNK_BYTES)
        self._heard = time.monotonic()
        if not data:
            self._left_alone()
            return
        for each in self._decoder.feed(data):
            # Once all ends here, it is its beats that count: no process may start, and each has its SIGTERM.
            if isinstance(each, dict) and (self._kill_at is None or each.get("do") == "took"):
                self._do(each)
        self._heard = time.monotonic()  # What it took is not the silence of bpslaunch.

    def _do(self, request: dict[str, Any]) -> None:
        action = request.get("do")
        try:
            if action == "greet":
                self._greet(request)
            elif action == "listen":
                self._listen(request)
            elif action == "start":
                if not self._refused:  # what asked for it had not heard of the refusal yet
                    self._start(request)
            elif action == "signal":
                child = self._children.get(request["id"])
                if child is not None:
                    child.signal(request["number"])
            elif action == "pass on":
                child = self._children.get(request["id"])
                if child is not None:
                    child.pass_on(request["number"])
            elif action == "took":
                self._untaken[request["descriptor"]] -= request["count"]
            elif action == "check":
                self._check(request)
            elif action == "probe":
                self._probe(request)
            elif action == "end":
                self._over = True
        except LaunchError as error:
            self._refuse(str(error), error.exit_code)
        except OSError as error:
            self._refuse(f"{error}", 1)

    def _refuse(self, text: str, code: int) -> None:
        self._refused = True
        self._report("refused", text=text, code=code)

    def _aside(self, work: Callable[[], Result]) -> Result:
        """Does what may take long while signs of life go on: else bpslaunch takes this host for lost."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(frame.BEAT_SECONDS)
            if thread.is_alive():
                self._outbox.send(frame.message(event="beat"))
        if errors:
            raise errors[0]
        return results[0]

    def _report(self, event: str, **fields: Any) -> None:
        self._outbox.send(frame.message(event=event, **fields))

    # ---- What we are asked for ----

    def _greet(self, request: dict[str, Any]) -> None:
        if not request.get("by_ssh"):
            os.environ.pop("SSH_CONNECTION", None)  # that of the user's own login
        connection = os.environ.get("SSH_CONNECTION", "").split()
        self._report(
            "hello",
            version=frame.VERSION,
            release=installed_release(),
            python=".".join(str(number) for number in sys.version_info[:3]),
            host=socket.gethostname(),
            identity=_identity(),
            pid=os.getpid(),
            time=time.time(),
            address=connection[2] if len(connection) == 4 else None,
            launcher_address=connection[0] if len(connection) == 4 else None,
            networks=own_networks(request.get("interface")),
            cores=len(os.sched_getaffinity(0)),
        )
        self._kill_after.set(float(request.get("kill_after", _ALONE_SECONDS)))
        self._enter(request.get("folders", []))

    def _enter(self, folders: Sequence[str]) -> None:
        """Works in the first of these that is there; LaunchError names the first if none is."""
        errors: list[OSError] = []

        def enter() -> None:
            for folder in folders:
                try:
                    return os.chdir(folder)
                except OSError as error:
                    errors.append(error)

        self._aside(enter)
        if folders and len(errors) == len(folders):
            raise LaunchError(f"cannot work in {folders[0]}: {errors[0].strerror}; name another one by --directory")

    def _listen(self, request: dict[str, Any]) -> None:
        try:
            address = self._aside(lambda: resolve(request["address"]))
        except OSError as error:
            raise LaunchError(f"the coordinator's address {request['address']}: {error.strerror}") from None
        self._listener = listen(address, request["port"])
        self._report("listening", port=self._listener.getsockname()[1])

    def _environment(self, given: Mapping[str, str]) -> Environment:
        own = {name: value for name, value in os.environ.items() if name not in PLACES}
        variables = {**own, **given}
        token = variables.pop("BYTEPS_JOB_TOKEN", None)
        if token is not None:
            if self._token_file is None:
                self._token_file = self._keep(token)
            variables["BYTEPS_JOB_TOKEN_FILE"] = self._token_file
        return Environment(with_plugins_of_checkout(variables))

    def _keep(self, token: str) -> str:
        """A file with the token, which our processes can read, also those in a container that sees the folder of
        temporary files. Where there is none, a file of memory, which is seen in our namespace of processes alone."""
        if self._folder is not None:
            with contextlib.suppress(LaunchError):
                self._folder.make()
                return str(self._folder.write_token(token))
        descriptor = memfd_create("byteps-token")
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, token.encode() + b"\n")
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _start(self, request: dict[str, Any]) -> None:
        environment = self._environment(request["variables"])
        self._aside(lambda: _require_route(environment.text("DMLC_PS_ROOT_URI")))
        variables = environment.variables()
        # Whose descendants may read each other's memory, where the system asks for it.
        variables["BYTEPS_LAUNCHER_PID"] = str(os.getpid())
        if self._folder is not None:
            variables.update(self._folder.variables())
        specs: list[tuple[int, ChildSpec]] = []
        services, workers = request["services"], request["workers"]
        servers = sum(each["role"] == "server" for each in services)
        plan = assign(environment, len(workers["ids"]) if workers is not None else 0, servers)
        threads = lanes(servers, environment, plan.of_servers) if workers is not None else None
        for service in services:
            specs.append((service["id"], self._service(service, variables, environment, threads)))
        specs = _placed(specs, plan)
        if workers is not None:
            own = {**variables, **workers["variables"]}
            command = worker_command(workers["command"], environment)
            specs += zip(workers["ids"], local_workers(command, environment, own, plan, workers["host"], False))
        for number, spec in specs:
            child = Child(spec, time.monotonic(), None)
            self._children[number] = child
            for stream in child.streams:
                self._watch_output(number, stream)
            self._report("started", id=number, pid=child.pid)
        if self._listener is not None:
            self._listener.close()  # It belongs to the coordinator now: its death must be seen by its peers.
            self._listener = None

    def _service(
        self, service: dict[str, Any], variables: dict[str, str], environment: Environment, threads: int | None
    ) -> ChildSpec:
        command = in_debugger([server_binary(environment)], environment)
        own = {**variables, **service["variables"]}
        if service["role"] == "server":
            if threads is not None:
                own["BYTEPS_SERVER_ENGINE_THREAD"] = str(threads)
            return ChildSpec(service["name"], Role.SERVER, command, {**own, "DMLC_ROLE": "server"})
        assert self._listener is not None
        # dup: Python's own descriptor is closed at exec, and by us.
        descriptor = os.dup(self._listener.fileno())
        own.update(DMLC_ROLE="scheduler", BYTEPS_COORDINATOR_FD=str(descriptor))
        return ChildSpec(service["name"], Role.COORDINATOR, command, own, descriptors=(descriptor,))

    def _check(self, request: dict[str, Any]) -> None:
        """What would be in the way here; and a port at which others see whether they reach us."""
        # Here: the agent of a job starts sooner without them.
        from ..finding import Level
        from ..installation_checks import check_installation, locked_memory
        from ..network_checks import check_port
        from ..placement_checks import check_placement
        from .probe import ProbeSink, own_interface

        environment = self._environment(request["variables"])
        workers, servers, services = request["workers"], request.get("servers", 0), request["services"]
        findings = self._aside(lambda: list(check_installation(environment, workers > 0, services, alone=False)))
        findings += check_placement(environment, workers, servers)
        found = [(each.level.value, each.subject, each.text) for each in findings]
        if request["workers"] and request["command"]:
            try:
                worker_command(request["command"], environment)
            except LaunchError as error:
                found.append((Level.FAIL.value, "command", str(error)))
        probed = 0  # the port at which the others try to reach us
        try:
            address = self._aside(lambda: resolve(request["address"]))
            if request["port"]:
                port = check_port(address, request["port"])
                found.append((port.level.value, port.subject, port.text))
            self._sink = ProbeSink(address, self._selector)
            probed = self._sink.port
        except OSError as error:
            found.append((Level.FAIL.value, "address", f"cannot listen at {request['address']}: {error.strerror}"))
        own: dict[str, Any] = {}
        try:
            own = own_interface(request["toward"])
        except OSError as error:
            found.append((Level.FAIL.value, "route", f"none to {request['toward']}: {error.strerror}"))
        self._report("checked", findings=found, port=probed, locked=locked_memory(), **own)

    def _probe(self, request: dict[str, Any]) -> None:
        """How we reach the other hosts."""
        from .probe import bytes_per_second, connect_to_all

        results = self._aside(lambda: connect_to_all([(address, port) for address, port in request["targets"]]))
        rate = None
        if request["measure"] is not None:
            address, port = request["measure"]
            with contextlib.suppress(OSError):
                rate = self._aside(lambda: bytes_per_second(address, port, _MEASURE_SECONDS))
        self._report("probed", results=results, rate=rate)

    # ---- What our processes do ----

    def _read(self, number: int, stream: Stream) -> bool:
        """Passes output on; False if there is nothing to read any more, or for now."""
        try:
            data = os.read(stream.pipe.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._outbox.send(frame.output(number, stream.descriptor, data))
        self._untaken[stream.descriptor] += len(data)
        if not data:
            self._unwatch(stream)
            stream.pipe.close()
        return bool(data)

    def _watch_output(self, number: int, stream: Stream) -> None:
        if not stream.pipe.closed and stream.descriptor not in self._held_back:
            self._selector.register(stream.pipe, selectors.EVENT_READ, lambda: self._read(number, stream))

    def _unwatch(self, stream: Stream) -> None:
        with contextlib.suppress(KeyError, ValueError):  # closed, or not watched while bpslaunch takes nothing
            self._selector.unregister(stream.pipe)

    def _balance(self) -> None:
        """Reads no more output than bpslaunch takes; all of it once there is none."""
        for descriptor, untaken in self._untaken.items():
            hold = untaken >= frame.WINDOW_BYTES and not self._alone
            if hold == (descriptor in self._held_back):
                continue
            self._held_back ^= {descriptor}
            for number, child in self._children.items():
                for stream in child.streams:
                    if stream.descriptor != descriptor:
                        continue
                    if hold:
                        self._unwatch(stream)
                    else:
                        self._watch_output(number, stream)

    def _reap(self) -> None:
        by_pid = {child.pid: (number, child) for number, child in self._children.items() if child.alive}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                number, child = by_pid.get(found.si_pid, (0, None))
                if child is not None and (found.si_code != os.CLD_EXITED or found.si_status != 0):
                    child.end_the_rest()
                _, status = os.waitpid(found.si_pid, 0)
                if child is None:
                    continue  # an orphan that we inherited
                child.ended(os.waitstatus_to_exitcode(status))
                for stream in child.streams:
                    self._drain(number, stream)
                self._report("ended", id=number, status=child.status)

    def _drain(self, number: int, stream: Stream) -> None:
        """What it left in its pipe; a grandchild may hold the other end, and write for ever."""
        for _ in range(1 << 20 >> 16):
            if stream.pipe.closed or not self._read(number, stream):
                return


def _require_route(root: str | None) -> None:
    """LaunchError if this host cannot send to the coordinator's address, before its processes try that for minutes."""
    if root is None:
        return
    try:
        address = resolve(root)
    except OSError as error:
        raise LaunchError(f"the coordinator's address {root}: {error.strerror}") from None
    why = why_unreachable(address)
    if why is not None:
        raise LaunchError(
            f"no route to the coordinator at {root}: {why}; --coordinator or DMLC_INTERFACE names another address"
        )


def _identity() -> str | None:
    """By which bpslaunch sees that two names are one host; None where the system does not tell."""
    with contextlib.suppress(OSError):
        return this_host()
    return None


def _placed(services: Sequence[tuple[int, ChildSpec]], plan: CorePlan) -> list[tuple[int, ChildSpec]]:
    """Coordinator and servers on their cores."""
    servers = iter(plan.servers)
    return [
        (number, dataclasses.replace(spec, cpus=next(servers) if spec.role is Role.SERVER else plan.coordinator))
        for number, spec in services
    ]


def serve(printer: Printer | None = None) -> int:
    """`bpslaunch --agent`; its exit code."""
    folder = None
    # Slurm kills all processes of a step at once: none would be left to remove a folder.
    if "SLURM_STEP_ID" not in os.environ:
        with contextlib.suppress(LaunchError):
            folder = JobFolder(make=False)
    kill_after = KillAfter()
    return guarded(
        lambda lifeline: run_agent(lifeline, folder, kill_after),
        kill_after,
        Printer() if printer is None else printer,
        None if folder is None else folder.remove,
    )


def run_agent(lifeline: int, folder: JobFolder | None = None, kill_after: KillAfter | None = None) -> int:
    """Serves the bpslaunch at our standard input and output, which nothing that we start shares."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # What is printed by mistake must not become frames.
    os.close(null)
    sys.stdout = sys.stderr
    return Agent(source, sink, lifeline, folder, kill_after).run()
