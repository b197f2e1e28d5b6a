"""The supervisor of a job over several hosts: as that of one host, with processes that agents have started.

Before RUNNING it is CONNECTING: every agent says who it is, then the coordinator's host listens, then all start.
Nothing of the job runs before every host has answered, so what is wrong with one of them is said before anything
trains.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..cause import Cause
from ..child import Child, Member, Role, Stream
from ..failure import LaunchError
from ..installation import installed_release
from ..output import OutputFiles, Printer
from ..supervisor import Phase, Supervisor
from . import frame
from .layout import HostLayout, HostPart, members, start_request
from .link import Link, RemoteChild, refused
from .redial import Redial
from .same_host import twice_named

_GREETING_SECONDS = 60.0  # a slow file system with Python on it
_FAREWELL_SECONDS = 2.0
_CLOCKS_APART = 60.0  # seconds that are worth a word


class HostSupervisor(Supervisor):
    """One job over several hosts, from the connections to the end of the last process."""

    def __init__(
        self,
        printer: Printer,
        files: OutputFiles | None,
        kill_after: float,
        lifeline: int,
        verbose: bool = False,
        host_names: bool = False,
    ) -> None:
        """As Supervisor; `host_names`: each line of output begins with the name of the host, too."""
        super().__init__(printer, files, kill_after, lifeline, verbose)
        self._kill_after = kill_after
        self._host_names = host_names
        self._phase = Phase.CONNECTING
        self._links: list[Link] = []
        self._remote: list[RemoteChild] = []  # by number
        self._ended_there: list[Member] = []
        self._next_beat = 0.0
        self._asked_to_listen = False
        self._redial = Redial()

    def run_hosts(
        self,
        layout: HostLayout,
        commands: Sequence[list[str]],
        command: Sequence[str],
        root: Callable[[Link, Sequence[Link]], tuple[str, int]],
        variables: Callable[[tuple[str, int] | None], dict[str, str]],
        folders: Sequence[str],
        interface: str | None,
    ) -> int:
        """The exit code of the job.

        Args:
            layout: who runs where
            commands: what starts the agent of each part
            command: of a worker
            root: where the coordinator shall listen, given the link to its host and all links; port 0: a free one
            variables: of all processes, given where it listens (None: there is none)
            folders: names of that in which the processes run: the first that is there
            interface: by which network interface the hosts meet; None: by the one that ssh or they themselves know
        """
        self._layout = layout
        self._commands = commands
        self._command = command
        self._root = root
        self._variables = variables
        self._folders = folders
        self._interface = interface
        return self.run([])

    # ---- Connecting ----

    def _start(self, _specs: Sequence[object]) -> None:
        now = time.monotonic()
        self._deadline = now + _GREETING_SECONDS
        for part, command in zip(self._layout.parts, self._commands):
            try:
                self._links.append(self._call(part, command, now))
            except LaunchError as error:
                self._fail(Cause(error.exit_code, str(error)))
                break
        self._advance()

    def _call(self, part: HostPart, command: list[str], now: float) -> Link:
        """Starts the client of a host, and asks its agent who it is; LaunchError if there is no client."""
        link = Link(part, command, now, self._selector, self._event)
        self._watch(link.client, link.client.streams[1])
        link.greet(self._folders, self._interface, self._kill_after)
        if self._verbose:
            self._say(f"host {link.machine}: pid {link.client.pid}: {' '.join(command)}")
        return link

    def _call_again(self) -> None:
        now = time.monotonic()
        for old in self._redial.due(now):
            try:
                self._links[self._links.index(old)] = self._call(old.part, old.spec.command, now)
            except LaunchError as error:
                self._fail(Cause(error.exit_code, str(error)))

    def _advance(self) -> None:
        if self._phase is Phase.CONNECTING:
            if self._cause is not None:
                self._enter(Phase.ENDING_WORKERS)
            elif time.monotonic() >= (self._deadline or 0.0):
                silent = ", ".join(link.machine for link in self._links if link.hello is None)
                home = "".join(f"{link.machine}, where the coordinator shall listen" for link in self._links_home())
                self._fail(Cause(1, f"no answer within {_GREETING_SECONDS:g} s from: {silent or home}"))
                self._enter(Phase.ENDING_WORKERS)
            else:
                self._call_again()
                self._connect()
        super()._advance()

    def _connect(self) -> None:
        """The next step once all hosts have taken the last one."""
        if any(link.hello is None for link in self._links):
            return
        home = next(iter(self._links_home()), None)
        try:
            for _, _, text in twice_named(self._links):
                raise LaunchError(text)
            if home is not None and not self._asked_to_listen:
                self._asked_to_listen = True
                self._address, port = self._root(home, self._links)
                home.send(do="listen", address=self._address, port=port)
            if home is None or home.port is not None:
                self._start_all(None if home is None else (self._address, home.port or 0))
        except LaunchError as error:
            self._fail(Cause(error.exit_code, str(error)))

    def _links_home(self) -> list[Link]:
        """The link to the coordinator's host, if there is one."""
        return [link for link in self._links if link.part is self._layout.coordinator]

    def _start_all(self, root: tuple[str, int] | None) -> None:
        variables = self._variables(root)
        now = time.monotonic()
        requests = []  # None is sent before all files are there: else some hosts would train for a moment.
        for link, (part, specs) in zip(self._links, members(self._layout)):
            children = [
                RemoteChild(spec, len(self._remote) + offset, link, now, self._files)
                for offset, spec in enumerate(specs)
            ]
            for child in children:
                child.shows_host = self._host_names
            self._remote += children
            self._children += children
            numbers = [child.number for child in children]
            requests.append((link, start_request(part, specs, numbers, self._layout, self._command, variables)))
        for link, request in requests:
            link.send(do="start", **request)
        self._phase = Phase.RUNNING
        self._deadline = None

    # ---- Events ----

    def _event(self, link: Link, event: dict[str, Any] | tuple[int, int, bytes]) -> None:
        if isinstance(event, tuple):
            number, descriptor, data = event
            self._output(self._remote[number], descriptor, data)
            return
        kind = event.get("event")
        if kind == "hello":
            self._greeted(link, event)
        elif kind == "listening":
            link.port = event["port"]
        elif kind == "started":
            child = self._remote[event["id"]]
            child.pid = event["pid"]
            if self._verbose:
                self._say(f"{child.spec.name}: pid {child.pid} on host {link.machine}")
        elif kind == "ended":
            child = self._remote[event["id"]]
            child.ended(event["status"])
            self._ended_there.append(child)
        elif kind == "ending":
            if self._phase in (Phase.CONNECTING, Phase.RUNNING):  # Else nobody is left there who could be missed.
                self._fail(Cause(event["code"], f"host {link.machine} {event['text']}: ending the job", asked_for=True))
        elif kind == "refused":
            error = refused(link, event)
            self._fail(Cause(error.exit_code, str(error)))
            for child in self._remote:
                if child.pid is None and child.alive:
                    child.lost = child.told_to_end = True
                    child.ended(-signal.SIGKILL)

    def _greeted(self, link: Link, hello: dict[str, Any]) -> None:
        link.hello = hello
        own = installed_release()
        if hello.get("version") != frame.VERSION or hello.get("release") != own:
            text = f"host {link.machine}: release {hello.get('release')}, we are {own}: install one release everywhere"
            self._fail(Cause(1, text))
        apart = abs(float(hello.get("time", 0.0)) - time.time())
        if apart > _CLOCKS_APART:
            self._say(f"host {link.machine}: its clock is {apart:.0f} s from ours: times in logs will not fit together")

    def _output(self, child: RemoteChild, descriptor: int, data: bytes) -> None:
        text = child.texts[descriptor]
        lines = text.feed(data, time.monotonic()) if data else text.close()
        self._check_file(child, text)
        self._write(child, text, lines, lambda: child.link.took(descriptor, len(data)))

    def _wait(self) -> None:
        now = time.monotonic()
        self._beat_if_due()
        watched = [link for link in self._links if link.alive and link.hello is not None and not link.silent]
        wake = min([self._redial.next_call(self._next_beat), self._next_beat, *(link.silent_at for link in watched)])
        deadline, self._deadline = self._deadline, min(wake, self._deadline or wake)
        waits_until = self._deadline
        try:
            super()._wait()
        finally:
            if self._deadline == waits_until:  # Else a signal has changed it.
                self._deadline = deadline
        stopped = time.monotonic() - now > frame.BEAT_SECONDS + frame.STOPPED_SECONDS
        for link in self._links:
            if stopped or (time.monotonic() >= link.silent_at and _is_unread(link)):
                link.heard = time.monotonic()
            link.check_silence(time.monotonic())

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + frame.BEAT_SECONDS
        for link in self._links:
            if link.alive:
                link.send(do="beat")

    def _local(self) -> list[Child]:
        return [link.client for link in self._links]

    def _streams(self, child: Child) -> Sequence[Stream]:
        return child.streams[1:]  # Of the first its link makes events.

    def _drain(self, child: Child, closing: bool) -> None:
        link = next(link for link in self._links if link.client is child)
        link.drain()
        for stream in self._streams(child):
            while not stream.pipe.closed and self._read(child, stream):
                pass
            if closing and not stream.pipe.closed:
                self._close(child, stream)

    def _judge_all(self, ended: Sequence[Member]) -> None:
        lost: list[Member] = []
        for client in ended:
            link = next(link for link in self._links if link.client is client)
            assert client.status is not None
            link.ended(client.status)
            if self._phase is Phase.CONNECTING and self._cause is None:
                wait = self._redial.take(link, time.monotonic())
                if wait is not None:
                    self._say(f"{link.identity} {link.ending()}: calling again in {wait:.1f} s")
                    continue
            lost.append(link)
            for child in self._remote:
                if child.alive and child.link is link:
                    child.lost = child.told_to_end = True
                    child.ended(-signal.SIGKILL)
        there, self._ended_there = self._ended_there, []
        super()._judge_all([*lost, *there])

    def _failed(self, child: Member) -> tuple[bool, str]:
        if child.spec.role is Role.HOST:
            return self._phase in (Phase.CONNECTING, Phase.RUNNING), ""
        return super()._failed(child)

    # ---- The end ----

    def _sweep(self) -> None:
        """Tells the agents that all is over, and ends those connections that do not end by that."""
        for link in self._links:
            if link.alive:
                link.say_over()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while any(link.alive for link in self._links) and time.monotonic() < deadline:
            self._deadline = min(deadline, time.monotonic() + 0.1)
            super()._wait()
            self._bury()
        for link in self._links:
            if link.alive:
                self._say(f"host {link.machine} has not confirmed the end of its processes; its agent ends them")
        super()._sweep()

    def _bury(self) -> None:
        for link in self._links:
            with contextlib.suppress(ChildProcessError):
                if link.alive and os.waitpid(link.client.pid, os.WNOHANG)[0] != 0:
                    link.client.ended(0)
                    link.drain()
                    link.ended(0)

    def _close_all(self) -> None:
        super()._close_all()
        for child in self._remote:
            for text in child.texts.values():
                self._write(child, text, text.close())


def _is_unread(link: Link) -> bool:
    """Whether something has come from an agent that we have not read yet: then the silence is our own."""
    pipe = link.client.streams[0].pipe
    if pipe.closed:
        return False
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))
