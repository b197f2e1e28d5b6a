"""Whether two names of a job's hosts are one host: the agents there tell, however the names are written."""

from __future__ import annotations

from collections.abc import Sequence

from .layout import HostPart
from .link import Link


def twice_named(links: Sequence[Link]) -> list[tuple[Link, Link, str]]:
    """Pairs of links to one host that is in the same list under two names, and what is wrong, for people.

    Workers of both would be counted, and placed on cores, as if they were on hosts of their own. A host of workers may
    have another name as the coordinator's or as a server's: BytePS's `--scheduler-ip` is one.
    """
    found = []
    for index, link in enumerate(links):
        for earlier in links[:index]:
            roles = _common(earlier.part, link.part)
            if roles and _identity(link) is not None and _identity(link) == _identity(earlier):
                assert link.hello is not None
                name = link.hello.get("host")
                text = f"{earlier.machine} and {link.machine} are one host, {name}, which is there twice among the "
                found.append((earlier, link, f"{text}hosts of {roles}: name it once, with all its slots"))
    return found


def _identity(link: Link) -> str | None:
    if link.hello is None or link.spec.command[0] == "srun":  # Nodes of Slurm may share a machine.
        return None
    return link.hello.get("identity")


def _common(one: HostPart, other: HostPart) -> str:
    if one.workers and other.workers:
        return "workers"
    return "servers" if one.servers and other.servers else ""
