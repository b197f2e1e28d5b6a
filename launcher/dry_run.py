"""`bpslaunch --dry-run`: each command as it would run, as a line for a shell. Nothing is started."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from .child import ChildSpec
from .output import Printer
from .topology import cpu_list

# Names of variables that hold a secret: the job's, and those of other programs that go to other hosts with it.
_SECRET = re.compile(r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)")


def print_children(specs: Sequence[ChildSpec], printer: Printer) -> int:
    """What would be started on this host; the exit code."""
    for spec in specs:
        printer.result(f"[{spec.name}] {shell_line(spec.command, spec.variables, os.environ, spec.cpus)}")
    for descriptor in {descriptor for spec in specs for descriptor in spec.descriptors}:
        os.close(descriptor)
    return 0


def shell_line(
    command: Sequence[str],
    variables: Mapping[str, str],
    beside: Mapping[str, str],
    cpus: Collection[int] | None = None,
) -> str:
    """`env A=1 taskset -c 0-3 command`: with the variables that differ from those `beside`."""
    words = [
        f"{name}={'...' if _SECRET.fullmatch(name) else value}"
        for name, value in sorted(variables.items())
        if beside.get(name) != value
    ]
    pinned = [] if cpus is None else ["taskset", "-c", cpu_list(cpus)]
    return shlex.join([*(["env", *words] if words else []), *pinned, *command])
