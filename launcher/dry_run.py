"""`bpslaunch --dry-run`: each command as it would run, as a line for a shell. Nothing is started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from .child import ChildSpec
from .output import Printer

# They hold a secret, or what would only be made for the job.
_HIDDEN = ("BYTEPS_JOB_TOKEN",)


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
        f"{name}={'...' if name in _HIDDEN else value}"
        for name, value in sorted(variables.items())
        if beside.get(name) != value
    ]
    pinned = [] if cpus is None else ["taskset", "-c", cpu_list(cpus)]
    return shlex.join([*(["env", *words] if words else []), *pinned, *command])


def cpu_list(cpus: Iterable[int]) -> str:
    """`0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
