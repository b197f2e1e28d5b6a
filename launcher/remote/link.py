"""The near side of a connection to an agent, and the processes behind it as the supervisor sees them."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from typing import Any, Callable

from ..child import CHUNK_BYTES, Child, ChildSpec, Member, Role, Text
from ..failure import LaunchError
from ..outbox import Outbox
from ..output import OutputFiles
from . import frame
from .layout import OF_A_HOST, HostPart
from .slurm_allocation import of_other_steps


class RemoteChild(Member):
    """A process on another host. Its agent tells what becomes of it."""

    def __init__(self, spec: ChildSpec, number: int, link: Link, now: float, files: OutputFiles | None) -> None:
        super().__init__(spec, now)
        self.number = number
        self.pid: int | None = None  # on its host
        self.lost = False  # with the connection to its host
        self.link = link
        self.shows_host = False
        self.texts = {
            descriptor: Text(descriptor, None if files is None else files.open(spec.name, stream))
            for descriptor, stream in ((1, "stdout"), (2, "stderr"))
        }

    @property
    def identity(self) -> str:
        """Its name, and where to find it."""
        return f"{self.spec.name} (host {self.link.machine}, pid {self.pid})"

    @property
    def label(self) -> str:
        """Its name; where asked for, with that of its host."""
        return f"{self.spec.name} on {self.link.machine}" if self.shows_host else self.spec.name

    def signal(self, number: int) -> None:
        """Has its agent send a signal to it."""
        if self.alive:
            self.told_to_end = True
            self.link.send(do="signal", id=self.number, number=number)

    def pass_on(self, number: int) -> None:
        """Has its agent pass a signal on to it."""
        if self.alive:
            self.link.send(do="pass on", id=self.number, number=number)

    def ending(self) -> str:
        """How it ended, for people."""
        return f"was lost with host {self.link.machine}" if self.lost else super().ending()


class Link(Member):
    """The connection to a host: an ssh client here, an agent there.

    As a member of the job it stands for what its processes depend on: while it is alive, so is the host.
    """

    def __init__(
        self, part: HostPart, command: list[str], now: float, selector: selectors.BaseSelector, on_event: OnEvent
    ) -> None:
        """Starts the client; LaunchError if there is none."""
        self.part = part
        self.machine = part.host.machine
        name = f"host {self.machine}"
        super().__init__(ChildSpec(name, Role.HOST, command, {}), now)
        variables = {each: value for each, value in os.environ.items() if each not in hidden_from(command)}
        self.client = Child(ChildSpec(name, Role.HOST, command, variables, piped_stdin=True), now, None)
        self.tail = self.client.tail
        self.hello: dict[str, Any] | None = None  # what the agent has said of itself
        self.port: int | None = None  # where the coordinator listens there
        self.heard = now
        self.silent = False
        self._selector = selector
        self._on_event = on_event
        self._decoder = frame.Decoder(greeted=False)
        assert self.client.stdin is not None
        self._outbox = Outbox(self.client.stdin.fileno(), selector, lambda _: None)  # the client's end tells it all
        self._taken = {1: 0, 2: 0}  # by descriptor: bytes of output of which the agent does not know that we have them
        self._pipe = self.client.streams[0].pipe
        selector.register(self._pipe, selectors.EVENT_READ, self.read)

    @property
    def identity(self) -> str:
        """The name of the host."""
        return self.spec.name

    def send(self, **fields: Any) -> None:
        """Asks the agent for something."""
        self._outbox.send(frame.message(**fields))

    def greet(self, folders: Sequence[str], interface: str | None, kill_after: float) -> None:
        """Asks the agent who it is, and to work in the first of `folders` that is there.

        `interface`: as of HostSupervisor.run_hosts(); `kill_after`: how long its processes have to end, in seconds, if
        it is told to end.
        """
        by_ssh = self.spec.command[0] == "ssh"
        self.send(do="greet", folders=list(folders), interface=interface, by_ssh=by_ssh, kill_after=kill_after)

    def read(self) -> bool:
        """Takes what has come from the agent; False if there is nothing any more, or for now."""
        try:
            data = os.read(self._pipe.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(self._pipe)
            self._pipe.close()
            return False
        self.heard = time.monotonic()
        try:
            for each in self._decoder.feed(data):
                self._on_event(self, each)
        except frame.FrameError as error:
            self.client.tail.append(str(error).encode())
            self.kill()
        return True

    def took(self, descriptor: int, count: int) -> None:
        """So many bytes of output are out of our hands: the agent may send more."""
        self._taken[descriptor] += count
        if self._taken[descriptor] >= frame.TAKEN_BYTES:
            self.send(do="took", descriptor=descriptor, count=self._taken[descriptor])
            self._taken[descriptor] = 0

    def drain(self) -> None:
        """Takes what is left when the client has ended."""
        while not self._pipe.closed and self.read():
            pass
        if not self._decoder.greeted and self._decoder.noise:
            self.client.tail.extend(self._decoder.noise.splitlines()[-5:])

    @property
    def silent_at(self) -> float:
        """When it is given up, if nothing comes until then."""
        return self.heard + frame.SILENCE_SECONDS

    def check_silence(self, now: float) -> None:
        """Gives the connection up if nothing has come for too long."""
        if self.alive and self.hello is not None and now >= self.silent_at:
            self.silent = True
            self.kill()

    def say_over(self) -> None:
        """The job is over: the agent ends, and the client with it."""
        self.send(do="end")

    def kill(self) -> None:
        """Ends the client; the agent notices."""
        self.client.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Does nothing: hosts are not ended by signals."""

    def pass_on(self, number: int) -> None:
        """Does nothing, either."""

    def ended(self, status: int) -> None:
        """The client has ended, or was given up."""
        super().ended(status)
        self._outbox.close()
        now = time.monotonic()
        if now - self.heard > 2 * frame.BEAT_SECONDS:  # ssh, too, gives a silent host up.
            # A launcher that was asleep itself, with its machine, leaves the others some time all the same.
            self.silent_since = max(self.heard, now - frame.SILENCE_SECONDS - frame.BEAT_SECONDS)

    @property
    def was_turned_away(self) -> bool:
        """True if an ssh daemon has ended the connection before the login, as one does that has too many of them."""
        if self.status != _SSH_FAILED or self.spec.command[0] != "ssh" or self._decoder.greeted:
            return False
        said = b"\n".join(self.tail).decode(errors="replace")
        return any(words in said for words in _TURNED_AWAY)

    def exit_code(self) -> int:
        """What the job reports if this is its cause."""
        return 1 if self.silent else super().exit_code() or 1

    def ending(self) -> str:
        """What became of the connection, and what to do, for people."""
        if self.silent:
            return f"has not been heard of for {frame.SILENCE_SECONDS:g} s: the host or the network is down"
        how = self.spec.command[0] if self.spec.command[0] in _CLIENTS else "its agent"
        reached = "was lost" if self.hello is not None else "could not be reached"
        return f"{reached}: {how} {super().ending()}{self._hint()}"

    def _hint(self) -> str:
        said = b"\n".join(self.tail).decode(errors="replace")
        for words, hint in _HINTS.items():
            if words in said:
                return f" ({hint})"
        return f" ({_TURNED_AWAY_HINT})" if self.was_turned_away else ""


def hidden_from(command: Sequence[str]) -> set[str]:
    """The variables here that this client of an agent does not have. All but ssh hand theirs to the agent: those of one
    host would be in force on each, though bpslaunch has said that they are ignored."""
    hidden = set() if command[0] == "ssh" else set(OF_A_HOST).intersection(os.environ)
    return hidden.union(of_other_steps(os.environ)) if command[0] == "srun" else hidden


OnEvent = Callable[[Link, "dict[str, Any] | tuple[int, int, bytes]"], None]

_CLIENTS = ("ssh", "srun")
_SSH_FAILED = 255
_TURNED_AWAY_HINT = "its ssh daemon, or that of a jump host, takes no more logins at a time: raise its MaxStartups"
_TURNED_AWAY = ("exchange_identification", "Connection closed by", "Connection reset by")

# What ssh and shells say, and what to do about it.
_HINTS = {
    "Could not resolve hostname": "the name is unknown here: correct it, or add it to ~/.ssh/config",
    "Permission denied (": "no password is asked for: log in with a key: ssh-copy-id, --ssh-identity, --ssh-user",
    "Permission denied": "that user may not run BytePS there: another --ssh-user, or --remote-bpslaunch",
    "IDENTIFICATION HAS CHANGED": "its key is another one than it was: find out why, then ssh-keygen -R HOST",
    "Host key verification failed": "its key is not known: log in once by hand, or ssh-keyscan, or "
    "--ssh-args '-o StrictHostKeyChecking=accept-new'",
    "Cannot execute command-line and remote command": "your configuration of ssh has a RemoteCommand for it: "
    "--ssh-args '-o RemoteCommand=none'",
    "Connection refused": "no ssh daemon listens there: start it, or --ssh-port",
    "No route to host": "the host is down, or a firewall is on the way",
    "Network is unreachable": "this host has no route to it",
    "Connection timed out": "the host is down, or a firewall is on the way",
    "error while loading shared libraries": "its Python lacks a library there: "
    "--remote-bpslaunch 'env LD_LIBRARY_PATH=DIR bpslaunch'",
    "not found": "BytePS is not installed at the same place there: install it, or --remote-bpslaunch",
    "No such file or directory": "BytePS is not installed at the same place there: install it, or --remote-bpslaunch",
    "unrecognized arguments": "an older bpslaunch is installed there: install one release everywhere",
}


def refused(link: Link, event: dict[str, Any]) -> LaunchError:
    """The error of an agent that cannot do what it was asked for."""
    return LaunchError(f"host {link.machine}: {event.get('text')}", int(event.get("code", 1)))
