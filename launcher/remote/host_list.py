"""The hosts of a job, as users write them.

    a:4,b:4            --hosts: names with how many workers each has; `a` alone has one
    a slots=4          --hostfile, a host a line: Horovod's and Open MPI's form, and MPICH's `a:4`
    a:2222             the files of BytePS's dist_launcher (-WH, -SH): a name with the port of its ssh daemon

A name may have a user in front (`me@a`), and may be an IPv6 address in brackets (`[fd00::1]:4`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import socket
from collections.abc import Iterable, Sequence

from ..environment import MOST_LOCAL_ROLES
from ..failure import LaunchError

_ENTRY = re.compile(r"(?P<name>(?:[^\s@:\[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s@:\[\]]+))(?::(?P<number>\d+))?")
# Open MPI's words for the processes that a host is to have, and for those that it may have.
_SLOTS = re.compile(r"(?:slots?|cpus?|count)=(\d+)")
_MOST_SLOTS = re.compile(r"(?:max[-_]slots|slots[-_]max)=(\d+)")


@dataclasses.dataclass(frozen=True)
class Host:
    """One host. Two of the same name are one machine."""

    name: str  # as ssh takes it, a user in front included
    slots: int | None = None  # processes on it; None: not said
    ssh_port: int | None = None

    @property
    def machine(self) -> str:
        """The name without the user, and without brackets."""
        return self.name.rpartition("@")[2].strip("[]")

    def also(self, other: Host) -> Host:
        """This one, as ssh reaches it where another option or file names the same machine with a user or a port, too.
        LaunchError if they do not agree."""
        for what, ways in (
            ("user", {each.name.rpartition("@")[0] for each in (self, other)} - {""}),
            ("ssh port", {str(each.ssh_port) for each in (self, other) if each.ssh_port is not None}),
        ):
            if len(ways) > 1:
                raise LaunchError(f"host {self.machine}: {what} {' and '.join(sorted(ways))}: it is reached by one")
        port = other.ssh_port if self.ssh_port is None else self.ssh_port
        return dataclasses.replace(self, name=self.name if "@" in self.name else other.name, ssh_port=port)


def parse_hosts(option: str, text: str) -> list[Host]:
    """The hosts of a command line. LaunchError names what is none."""
    entries = [entry.strip() for entry in text.split(",")]
    return _once(option, [_with_slots(option, entry) for entry in entries if entry])


def parse_host(option: str, text: str) -> Host:
    """One host without a number; an IPv6 address may stand without brackets. LaunchError says what is wrong."""
    user, _, machine = text.rpartition("@")
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET6, machine.partition("%")[0])
        text = f"{user}@[{machine}]" if user else f"[{machine}]"
    name, number = _entry(option, text)
    if number is not None:
        raise LaunchError(f"{option} {text}: expected a host alone; its port is --port {number}")
    return Host(name)


def parse_address(option: str, text: str) -> str | None:
    """The address by which a host is named; None if it is named by a name. LaunchError says what is wrong."""
    machine = parse_host(option, text).machine
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, machine.partition("%")[0])
            return machine
    return None


def read_hostfile(option: str, path: str) -> list[Host]:
    """The hosts of a file of Horovod's, Open MPI's or MPICH's form; `#` begins a comment."""
    hosts = []
    for where, line in _lines(option, path):
        words = line.split()
        host = _with_slots(where, words[0])
        most = None
        for word in words[1:]:
            slots, limit = _SLOTS.fullmatch(word), _MOST_SLOTS.fullmatch(word)
            if slots is not None and host.slots is None:
                host = dataclasses.replace(host, slots=_count(where, slots[1]))
            elif limit is not None and most is None:
                most = _count(where, limit[1])
            else:
                again = "this is there already" if slots is not None or limit is not None else "expected slots=N"
                raise LaunchError(f"{where}: {word!r}: {again}")
        if most is not None and (host.slots is None or host.slots > most):
            asked = "no slots=N beside it" if host.slots is None else f"slots={host.slots} are more"
            raise LaunchError(f"{where}: max_slots={most}: {asked}")
        hosts.append(host)
    return _once(f"{option} {path}", hosts)


def read_byteps_hostfile(option: str, path: str) -> list[Host]:
    """The hosts of a file of BytePS's dist_launcher: the number after the colon is the port of the ssh daemon."""
    hosts = []
    for where, line in _lines(option, path):
        name, number = _entry(where, line)
        hosts.append(Host(name, None, number))
    return _once(f"{option} {path}", hosts)


def _lines(option: str, path: str) -> Iterable[tuple[str, str]]:
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")  # as some editors write it
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if bare:
            yield f"{option} {path}, line {number}", bare


def _entry(where: str, text: str) -> tuple[str, int | None]:
    found = _ENTRY.fullmatch(text)
    if found is None and text.count(":") > 1 and "[" not in text:
        raise LaunchError(f"{where}: {text!r}: an IPv6 address stands in brackets: [fd00::1]:N")
    # A name that begins with a dash would be an option of ssh.
    if found is None or found["name"].startswith("-"):
        raise LaunchError(f"{where}: {text!r}: expected a host's name or address, and perhaps :N behind it")
    return found["name"], None if found["number"] is None else int(found["number"])


def _with_slots(where: str, text: str) -> Host:
    name, number = _entry(where, text)
    return Host(name, None if number is None else _count(where, str(number)))


def _count(where: str, text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_LOCAL_ROLES:
        raise LaunchError(f"{where}: {number} processes on a host: expected 1 to {MOST_LOCAL_ROLES}")
    return number


def _once(where: str, hosts: Sequence[Host]) -> list[Host]:
    if not hosts:
        raise LaunchError(f"{where}: no hosts")
    seen = set()
    for host in hosts:
        if host.machine in seen:
            raise LaunchError(f"{where}: {host.machine} is there twice: name it once, with all its slots")
        seen.add(host.machine)
    return list(hosts)
