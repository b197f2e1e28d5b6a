"""Starts the processes of a job, watches over them, and ends them all.

    supervisor = Supervisor(printer, files, kill_after=5.0, lifeline=descriptor)
    exit_code = supervisor.run(specs)

The job is over when every worker has ended with code 0, or at the first failure: a worker that ends otherwise, a server
or coordinator that ends while a worker runs, a signal, the death of the guardian. Then a small state machine runs:

    RUNNING -> OWN_EXIT -> ENDING_WORKERS -> ENDING_COORDINATOR -> ENDING_SERVERS -> ENDED

In OWN_EXIT, which only the failure of a process leads to, the other workers have a moment to hear of it and to end by
their own errors: these name who is missing, and a SIGTERM would silence them. Each of the three that follow sends
SIGTERM when entered and SIGKILL at its deadline; what the deadlines add up to is said in countdown.py. Workers go
first: one that ends in order still needs the others. The coordinator goes before the servers: it tells them that the
job is over; the other way round it would see them die. After ENDED, everything that descends from us is killed: what a
worker left in the background goes too.

Threads: one. It must be the only user of child processes and signals in its process.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from . import missing_library, process_tree
from .cause import Cause, Verdict, gravity, raised_first
from .child import CHUNK_BYTES, Child, ChildSpec, Member, Role, Stream, Text
from .countdown import OWN_EXIT_SECONDS, SILENT_OWN_EXIT_SECONDS, Countdown
from .descriptor_limit import raise_limit
from .failure import LaunchError
from .guardian import SIGNALS
from .outbox import Outbox
from .output import OutputFiles, Printer
from .worker_signals import WorkerSignals

_ONE_SIGNAL_SECONDS = 1.0  # SIGTERMs after the beginning of the end that are no second wish
_LARGEST_PIPE = 1 << 20  # /proc/sys/fs/pipe-max-size
_MOST_WAITING = 256 * 1024  # bytes of output that our reader has not taken, before we read more from our children
_LAST_OUTPUT_SECONDS = 1.0  # that our reader may be behind once the job must end


class Phase(enum.Enum):
    """What the supervisor is doing."""

    CONNECTING = "connecting to the others"  # hosts, or the other tasks of a launcher
    RUNNING = "running"
    OWN_EXIT = "waiting for the workers' own errors"
    ENDING_WORKERS = "ending the workers"
    ENDING_COORDINATOR = "ending the coordinator"
    ENDING_SERVERS = "ending the servers"
    ENDED = "ended"


# Whom a phase ends, and which phase is next.
_ENDS = {
    Phase.ENDING_WORKERS: (Role.WORKER, Phase.ENDING_COORDINATOR),
    Phase.ENDING_COORDINATOR: (Role.COORDINATOR, Phase.ENDING_SERVERS),
    Phase.ENDING_SERVERS: (Role.SERVER, Phase.ENDED),
}


class Supervisor:
    """One job, from the start of its processes to the end of the last one."""

    def __init__(
        self,
        printer: Printer,
        files: OutputFiles | None,
        kill_after: float,
        lifeline: int,
        verbose: bool = False,
    ) -> None:
        """`lifeline` is a pipe that ends when the guardian does. `kill_after`: seconds from SIGTERM to SIGKILL."""
        self._printer = printer
        self._files = files
        self._countdown = Countdown(kill_after)
        self._failed_at = 0.0  # when that happened which ends the job early
        self._ends_since = 0.0  # when we learned of it
        self._lifeline = lifeline
        self._verbose = verbose
        self._children: list[Member] = []
        self._phase = Phase.RUNNING
        self._deadline: float | None = None  # of the phase; None: it has none
        self._killed = False  # in this phase
        self._verdict = Verdict()
        self._ending_with_the_first: list[Member] = []  # who had begun to end when the first failure was seen
        self._signals: list[int] = []
        self._for_workers = WorkerSignals()
        self._selector = selectors.DefaultSelector()
        self._shown = self._outboxes()  # by descriptor: what our readers have not taken yet
        self._mute: set[int] = set()  # our output descriptors without a reader, or with a slow one at the end
        self._held_back: set[int] = set()  # our output descriptors that are so far behind that we read no more for them

    def run(self, specs: Sequence[ChildSpec]) -> int:
        """Returns the exit code of the job: 0, or that of the first failure."""
        process_tree.become_subreaper()
        raise_limit()
        self._watch_signals()
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._guardian_died)
        try:
            self._start(specs)
            while self._phase is not Phase.ENDED:
                self._wait()
                self._reap()
                self._advance()
        finally:
            self._sweep()
        self._close_all()
        self._let_read()
        self._report()
        deadline = time.monotonic() + _LAST_OUTPUT_SECONDS
        for shown in self._shown.values():
            shown.drain(deadline)
        return 0 if self._cause is None else self._cause.exit_code

    @property
    def _cause(self) -> Cause | None:
        return self._verdict.cause

    # ---- Events ----

    def _watch_signals(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
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

    def _wait(self) -> None:
        """Waits for an event or the deadline of the phase, and handles the events that are there."""
        self._serve(self._deadline)
        self._balance()
        while self._signals:
            self._signalled(self._signals.pop(0))
        for number in self._for_workers.take():
            if self._verbose:
                self._say(f"{signal.Signals(number).name}: passed on to the workers")
            for child in self._alive(Role.WORKER):
                child.pass_on(number)

    def _serve(self, deadline: float | None) -> None:
        """One round of the selector, until then at the latest."""
        wakes = [deadline, *(self._patience_ends(shown) for shown in self._heard())]
        wake = min((each for each in wakes if each is not None), default=None)
        for key, _ in self._selector.select(None if wake is None else max(0.0, wake - time.monotonic())):
            key.data()
        self._mute_the_slow()

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._phase in (Phase.CONNECTING, Phase.RUNNING) and self._cause is None:
            self._fail(Cause(128 + number, f"{name}: ending the job", asked_for=True))
        elif number == signal.SIGTERM and time.monotonic() < self._failed_at + _ONE_SIGNAL_SECONDS:
            # A batch system signals all of our processes, and those in front of us pass theirs on; an agent that was
            # signalled, too, may have told us before.
            pass
        elif self._deadline is not None:
            what = "ending the workers" if self._phase is Phase.OWN_EXIT else "killing what is left"
            self._say(f"{name} while {self._phase.value}: {what}")
            self._deadline = min(self._deadline, time.monotonic())

    def _guardian_died(self) -> None:
        self._selector.unregister(self._lifeline)
        self._fail(Cause(128 + signal.SIGKILL, "bpslaunch itself was killed: ending the job", asked_for=True))

    def _fail(self, cause: Cause) -> None:
        """Notes why the job must end; an earlier cause stays."""
        if self._cause is None:
            own_exit = 0.0 if cause.child is None else OWN_EXIT_SECONDS
            self._failed_at = self._ends_since = time.monotonic()
            if cause.child is not None and cause.child.silent_since is not None:
                self._failed_at, own_exit = cause.child.silent_since, SILENT_OWN_EXIT_SECONDS
            self._countdown.begin(self._failed_at, own_exit)
            if self._deadline is not None:
                self._deadline = min(self._deadline, self._countdown.limit)
        if self._verdict.weigh(cause):
            self._say(cause.text)

    # ---- Processes ----

    def _start(self, specs: Sequence[ChildSpec]) -> None:
        for spec in specs:
            while self._signals:  # starting many takes a while
                self._signalled(self._signals.pop(0))
            if self._cause is not None:
                break
            try:
                child = Child(spec, time.monotonic(), self._files)
            except LaunchError as error:
                self._fail(Cause(error.exit_code, str(error)))
                break
            self._children.append(child)
            for stream in child.streams:
                self._watch(child, stream)
            if self._verbose:
                self._say(f"{spec.name}: pid {child.pid}: {' '.join(spec.command)}")
        for descriptor in {descriptor for spec in specs for descriptor in spec.descriptors}:
            os.close(descriptor)  # It belongs to the child now: its death must be seen by its peers.
        self._advance()

    def _watch(self, child: Child, stream: Stream) -> None:
        if stream.descriptor not in self._held_back:
            self._selector.register(stream.pipe, selectors.EVENT_READ, lambda: self._read(child, stream))

    def _unwatch(self, stream: Stream) -> None:
        with contextlib.suppress(KeyError):  # It is not watched while our reader is far behind.
            self._selector.unregister(stream.pipe)

    def _local(self) -> list[Child]:
        """Those that we have started ourselves."""
        return [child for child in self._children if isinstance(child, Child)]

    def _reap(self) -> None:
        by_pid = {child.pid: child for child in self._local() if child.alive}
        ended = []
        with contextlib.suppress(ChildProcessError):
            # Looked at before it is reaped: until then its number is no other process's.
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                child = by_pid.get(found.si_pid)
                if child is not None and (found.si_code != os.CLD_EXITED or found.si_status != 0):
                    child.end_the_rest()
                _, status = os.waitpid(found.si_pid, 0)
                if child is not None:  # Else an orphan that we inherited.
                    child.ended(os.waitstatus_to_exitcode(status))
                    ended.append(child)
        for child in ended:
            self._drain(child, closing=False)
        self._judge_all(ended)

    def _judge_all(self, ended: Sequence[Member]) -> None:
        """Of several that ended at once, the likeliest cause first."""
        for child in sorted(ended, key=gravity):
            self._judge(child)

    def _judge(self, child: Member) -> None:
        """Decides what the end of a child means for the job."""
        after = f"after {time.monotonic() - child.started:.1f} s"
        if self._verbose:
            self._say(f"{child.spec.name}: {child.ending()} {after}")
        if self._cause is not None:
            self._reconsider(child, after)
            return
        failed, circumstance = self._failed(child)
        if failed:
            self._ending_with_the_first = [other for other in self._children if other.exiting]
            text = f"{child.identity} {child.ending()} {after}{circumstance}"
            self._fail(Cause(child.exit_code() or 1, f"{text}; ending the job", child))

    def _failed(self, child: Member) -> tuple[bool, str]:
        """Whether the end of a child is a failure of the job, and in what circumstance."""
        if child.spec.role is Role.WORKER:
            return child.status != 0, ""
        if self._phase is Phase.RUNNING and self._alive(Role.WORKER):
            return not child.ended_in_order, " while workers were running"
        good = (0,) if self._phase is Phase.RUNNING else (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        return child.status not in good and not self._killed, " at the end of the job"

    def _reconsider(self, child: Member, after: str) -> None:
        """After the first failure: decides whether the end of a child is the cause of it.

        One whom we told to end is not. A coordinator or server does not end because of a worker; a worker may well, so
        it must have begun to end by then, or have raised its exception, unless it was killed, which is not done to
        himself.
        """
        first = None if self._cause is None else self._cause.child
        if first is None or child.told_to_end or child.ended_in_order:
            return
        assert child.status is not None
        if child.spec.role is Role.SERVER and child.status >= 0 and self._coordinator_told_to_end():
            return  # It heard it from the coordinator.
        earlier = (
            child.spec.role is not Role.WORKER
            or child in self._ending_with_the_first
            or child.status == -signal.SIGKILL
            or raised_first(child, first)
        )
        text = f"{child.identity} {child.ending()} {after}: the likely cause"
        if self._verdict.weigh(Cause(child.exit_code() or 1, text, child), may_come_first=earlier):
            self._say(text)

    def _coordinator_told_to_end(self) -> bool:
        return any(child.told_to_end for child in self._children if child.spec.role is Role.COORDINATOR)

    def _alive(self, role: Role) -> list[Member]:
        return [child for child in self._children if child.alive and child.spec.role is role]

    # ---- Phases ----

    def _advance(self) -> None:
        """Takes every step of the state machine that is due."""
        if self._phase is Phase.RUNNING:
            if self._cause is not None:
                self._enter(Phase.OWN_EXIT if self._cause.child is not None else Phase.ENDING_WORKERS)
            elif not self._alive(Role.WORKER):
                self._enter(Phase.ENDING_COORDINATOR)
        if self._phase is Phase.OWN_EXIT and self._last_words_are_said():
            self._enter(Phase.ENDING_WORKERS)
        while self._phase in _ENDS and self._phase_is_over():
            self._enter(_ENDS[self._phase][1])

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._killed = False
        if phase is Phase.ENDED:
            return
        self._deadline = deadline = self._deadline_of(phase)
        if self._verbose and self._cause is not None:
            self._say(f"{phase.value}: until {deadline - self._failed_at:.1f} s after the failure")
        if phase is Phase.OWN_EXIT:
            return
        for child in self._alive(_ENDS[phase][0]):
            child.signal(signal.SIGTERM)

    def _deadline_of(self, phase: Phase) -> float:
        deadline = {
            Phase.OWN_EXIT: self._countdown.own_exit,
            Phase.ENDING_WORKERS: self._countdown.workers,
            Phase.ENDING_COORDINATOR: self._countdown.coordinator,
            Phase.ENDING_SERVERS: self._countdown.servers,
        }[phase]
        return deadline(time.monotonic())

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _last_words_are_said(self) -> bool:
        if self._is_late():
            return True
        return not self._alive(Role.WORKER) and not any(child.exiting for child in self._children)

    def _phase_is_over(self) -> bool:
        """True when those whom the phase ends have ended, or do not even end on SIGKILL."""
        left = self._alive(_ENDS[self._phase][0])
        if not left:
            return True
        if not self._is_late():
            return False
        names = ", ".join(f"{child.identity}" for child in left)
        if self._killed:
            self._say(f"not even ended by SIGKILL: {names}")
            return True
        self._say(f"still there after SIGTERM, killed: {names}")
        for child in left:
            child.signal(signal.SIGKILL)
        self._killed = True
        self._deadline = self._countdown.killed(time.monotonic())
        return False

    def _sweep(self) -> None:
        """Kills everything that descends from us."""
        if not process_tree.end_descendants(self._countdown.killed(time.monotonic())):
            self._say(f"processes that do not end: {sorted(process_tree.descendants(os.getpid()))}")

    # ---- Output ----

    def _read(self, child: Child, stream: Stream) -> bool:
        """Reads and prints once; False if there is nothing to read any more, or for now."""
        try:
            lines = stream.read(time.monotonic())
        except BlockingIOError:
            return False
        self._check_file(child, stream)
        if lines is None:
            self._close(child, stream)
            return False
        self._write(child, stream, lines)
        return True

    def _check_file(self, child: Member, stream: Text) -> None:
        if stream.file_error is not None:
            why = stream.file_error.strerror
            self._fail(Cause(1, f"the output of {child.spec.name} cannot be kept in its file: {why}: ending the job"))

    def _close_all(self) -> None:
        """Takes the last output of all processes."""
        for child in self._local():
            self._drain(child, closing=True)

    def _drain(self, child: Child, closing: bool) -> None:
        """Reads what a child that has ended left in its pipes. A grandchild may hold their other ends, and write for
        ever: no waiting, and no more than a pipe can hold."""
        for stream in child.streams:
            for _ in range(_LARGEST_PIPE // CHUNK_BYTES):
                if stream.pipe.closed or not self._read(child, stream):
                    break
            if closing and not stream.pipe.closed:
                self._close(child, stream)

    def _close(self, child: Child, stream: Stream) -> None:
        self._unwatch(stream)
        self._write(child, stream, stream.close())

    def _write(self, child: Member, stream: Text, lines: list[bytes], taken: Callable[[], None] = lambda: None) -> None:
        """Has lines shown. `taken` is called when our reader has them, or will not get them."""
        child.wrote(lines, time.monotonic())
        if stream.descriptor in self._mute or self._is_of_the_end(child):
            taken()
        else:
            self._shown[stream.descriptor].send(self._printer.text(child.label, stream.descriptor, lines), taken)

    def _is_of_the_end(self, child: Member) -> bool:
        """Whether it complains of the workers that we have just ended, as servers and coordinator do."""
        ended_them = self._cause is not None and self._cause.asked_for
        return ended_them and child.spec.role is not Role.WORKER and not self._verbose

    def _outboxes(self) -> dict[int, Outbox]:
        first = Outbox(1, self._selector, lambda error: self._unwritable(1, error), shared=True)
        # Two that write to the same terminal would mix their lines.
        if os.path.sameopenfile(1, 2):
            return {1: first, 2: first}
        return {1: first, 2: Outbox(2, self._selector, lambda error: self._unwritable(2, error), shared=True)}

    def _unwritable(self, descriptor: int, error: OSError) -> None:
        self._mute.add(descriptor)
        code = 128 + signal.SIGPIPE if error.errno == errno.EPIPE else 1
        self._fail(Cause(code, f"our output cannot be written: {error.strerror}: ending the job"))

    def _patience_ends(self, shown: Outbox) -> float | None:
        """When a reader is too slow for the end of the job unless it has caught up by then; None: it has time."""
        if self._cause is None or not self._is_behind(shown):
            return None
        return max(shown.waiting_since, self._ends_since) + _LAST_OUTPUT_SECONDS

    def _is_behind(self, shown: Outbox) -> bool:
        """Whether something waits there that is not the last we have to say."""
        return shown.size > 0 and any(each is shown for each in self._heard())

    def _heard(self) -> list[Outbox]:
        return [shown for descriptor, shown in self._shown.items() if descriptor not in self._mute]

    def _mute_the_slow(self) -> None:
        """Once the job must end, a slow reader of our output must not keep it waiting for long."""
        for shown in self._heard():
            ends = self._patience_ends(shown)
            if ends is not None and time.monotonic() >= ends:
                self._give_up(shown)

    def _give_up(self, shown: Outbox) -> None:
        self._mute.update(descriptor for descriptor, each in self._shown.items() if each is shown)
        shown.drop()
        self._say("the reader of our output is slow: the rest of it is not shown")

    def _balance(self) -> None:
        """Reads no more output than our reader takes."""
        for descriptor, shown in self._shown.items():
            hold = shown.size >= _MOST_WAITING
            if hold == (descriptor in self._held_back):
                continue
            self._held_back ^= {descriptor}
            for child in self._local():
                for stream in self._streams(child):
                    if stream.descriptor != descriptor or stream.pipe.closed:
                        continue
                    if hold:
                        self._unwatch(stream)
                    else:
                        self._watch(child, stream)

    def _streams(self, child: Child) -> Sequence[Stream]:
        """Those of its streams that are shown."""
        return child.streams

    def _let_read(self) -> None:
        """Waits until our readers have all that waits. A signal ends that, and a failed job does after a second."""
        while any(self._is_behind(shown) for shown in self._heard()):
            self._serve(None)
            if self._signals:
                for shown in self._heard():
                    if self._is_behind(shown):
                        self._give_up(shown)

    def _say(self, text: str) -> None:
        self._shown[2].send(self._printer.message(text), lasting=True)

    def _report(self) -> None:
        """The last word: the lines of the one that failed, below what all others wrote since."""
        if self._cause is None or self._cause.child is None:
            return
        child = self._cause.child
        lines = [line.decode(errors="replace") for line in child.tail]
        if lines:
            self._say("\n".join([f"last lines of {child.spec.name}:", *(f"  {line}" for line in lines)]))
        else:
            self._say(f"{child.spec.name} wrote nothing")
        if todo := missing_library.advice(lines):
            self._say(todo)
        self._say(f"{child.spec.name} {child.ending()}: exit code {self._cause.exit_code}")
