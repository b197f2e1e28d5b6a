"""The command that starts an agent on another host.

    ssh [options] host 'exec PYTHON LAUNCHER --agent'

Nothing of the job stands in it: command lines can be read by all users of both hosts. The agent reads all from its
standard input, whose end is also how it learns that the launcher is gone.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import socket
import sys

from ..failure import LaunchError
from .host_list import Host

# With BatchMode no password is asked for; the other three find a dead network within some seconds.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "1",
    "ServerAliveCountMax": "4",
    "ForwardX11": "no",
}
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


def is_this_host(host: Host) -> bool:
    """True for `localhost` and for the own name: no ssh is needed."""
    return host.machine in ("localhost", "127.0.0.1", "::1") or (
        "@" not in host.name and host.machine in (socket.gethostname(), socket.gethostname().partition(".")[0])
    )


def agent_command(options: SshOptions) -> list[str]:
    """What runs on the host itself."""
    if options.bpslaunch is not None:
        return [*shlex.split(options.bpslaunch), "--agent"]
    return [sys.executable, str(_LAUNCHER), "--agent"]


def command(host: Host, options: SshOptions) -> list[str]:
    """What runs here to have an agent on `host`."""
    there = agent_command(options)
    if is_this_host(host):
        return there
    words = [options.program, "-T"]
    try:
        own = shlex.split(options.arguments)
    except ValueError as error:
        raise LaunchError(f"--ssh-args {options.arguments}: {error}") from None
    words += own  # Of an option that is there twice ssh takes the first.
    for key, value in _OPTIONS.items():
        words += ["-o", f"{key}={value}"]
    port = host.ssh_port or options.port
    if port is not None:
        words += ["-p", str(port)]
    if options.identity is not None:
        words += ["-i", os.path.expanduser(options.identity)]  # noqa: PTH111, "~user" as ssh takes it
    if options.user is not None and "@" not in host.name:
        words += ["-l", options.user]
    return [*words, host.name.replace("[", "").replace("]", ""), "exec " + shlex.join(there)]
