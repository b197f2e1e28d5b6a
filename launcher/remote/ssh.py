"""The command that starts an agent on another host.

    ssh [options] host 'exec PYTHON LAUNCHER --agent'

Nothing of the job stands in it: command lines can be read by all users of both hosts. The agent reads all from its
standard input, whose end is also how it learns that the launcher is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import pwd
import re
import shlex
import socket
import sys

from ..failure import LaunchError
from .host_list import Host
from .shared_names import shared_names

# With BatchMode no password is asked for; the next three find a dead network within some seconds. Without ControlMaster
# no client carries the connections of another job, which would end with it; one that is there already is used.
# Forwardings of the user's configuration would take the ports of those of his login, and end the client with
# ExitOnForwardFailure.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "1",
    "ServerAliveCountMax": "4",
    "ForwardX11": "no",
    "ControlMaster": "no",
    "ClearAllForwardings": "yes",
}
# In --ssh-args: a forwarding, which ClearAllForwardings would clear, too. (-4L 1:b:2, -oLocalForward=...)
_FORWARDING = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*[LRD]|(?i:(-o)?\s*(Local|Remote|Dynamic)Forward[\s=])")
_DEFAULT_PORT = 22
# In front of Python and launcher by two names each: the first pair that is there is the agent.
_FIRST_THERE = 'test -x "$0" && test -e "$1" && exec "$0" "$1" --agent; exec "$2" "$3" --agent'
_LAUNCHER = pathlib.Path(__file__).resolve().parent.parent / "launch.py"


@dataclasses.dataclass(frozen=True)
class SshOptions:
    """How other hosts are reached."""

    port: int | None = None
    user: str | None = None
    identity: str | None = None
    arguments: str = ""  # as a shell would read them: "-F config -o Key=value"
    program: str = "ssh"
    bpslaunch: str | None = None  # the command that is bpslaunch there; None: the same files as here


def is_this_host(host: Host, options: SshOptions) -> bool:
    """True for `localhost` and for the own name: no ssh is needed, unless for another user, or another daemon's port,
    behind which a container may be."""
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.gethostname().partition(".")[0])
    user = host.name.rpartition("@")[0] or options.user
    port = host.ssh_port or options.port
    return host.machine in own and port in (None, _DEFAULT_PORT) and user in (None, _own_user())


def _own_user() -> str | None:
    with contextlib.suppress(KeyError):  # A user of a container need not be in /etc/passwd.
        return pwd.getpwuid(os.getuid()).pw_name
    return None


def agent_command(options: SshOptions) -> list[str]:
    """What runs on the host itself."""
    if options.bpslaunch is not None:
        return [*_words("--remote-bpslaunch", options.bpslaunch), "--agent"]
    here = [sys.executable, str(_LAUNCHER), "--agent"]
    names = [shared_names(name)[0] for name in here[:2]]
    return here if names == here[:2] else ["sh", "-c", _FIRST_THERE, *names, *here[:2]]


def _words(option: str, text: str) -> list[str]:
    """As a shell reads them; LaunchError if it would not."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"{option} {text}: {error}") from None


def command(host: Host, options: SshOptions) -> list[str]:
    """What runs here to have an agent on `host`."""
    there = agent_command(options)
    if is_this_host(host, options):
        return there
    words = [options.program, "-T"]
    own = _words("--ssh-args", options.arguments)
    words += own  # Of an option that is there twice ssh takes the first.
    forwards = any(_FORWARDING.match(word) for word in own)
    for key, value in _OPTIONS.items():
        if not (forwards and key == "ClearAllForwardings"):
            words += ["-o", f"{key}={value}"]
    port = host.ssh_port or options.port
    if port is not None:
        words += ["-p", str(port)]
    if options.identity is not None:
        words += ["-i", os.path.expanduser(options.identity)]  # noqa: PTH111, "~user" as ssh takes it
    if options.user is not None and "@" not in host.name:
        words += ["-l", options.user]
    return [*words, host.name.replace("[", "").replace("]", ""), "exec " + shlex.join(there)]
