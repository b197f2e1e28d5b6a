"""What is run, one step after the other, each with a deadline, and how each has ended.

    steps = Steps(out, environment, seconds=570)
    steps.run("job_alone", command, 60)
    if steps.failed(): ...

The table steps.md is written anew after each step: what there is stays if the machine goes away. A step is a process
group of its own, which ends with it: what hangs ends the step and not the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

NOT_RUN = 77  # how a program says that it lacks something here; its last line says what
# How a step has ended: well, not run for a reason that is no failure, below its goal, or badly.
OK, DECLINED, MISSED, FAILED = "ok", "declined", "missed", "failed"
_GRACE = 10.0  # seconds in which a group that was told to end may do so


@dataclasses.dataclass(frozen=True)
class Row:
    """A step that is over."""

    name: str
    result: str
    seconds: float
    kind: str


class Steps:
    """The steps of a run. `only`: the names of those that are wanted; none: all. `patience`: so many times the limit
    that a step has."""

    def __init__(
        self,
        out: Path,
        environment: Mapping[str, str],
        seconds: float,
        only: Sequence[str] = (),
        patience: float = 1,
    ) -> None:
        self.out = out
        self.end = time.monotonic() + seconds
        self.environment = dict(environment)
        self.rows: list[Row] = []
        self._only = only
        self._patience = patience

    def wanted(self, name: str) -> bool:
        """Is it to be run? A name that ends with * stands for all that begin so."""
        return not self._only or any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each for each in self._only
        )

    def left(self) -> float:
        """The seconds that are left for all that follows; below 1: no step is begun any more."""
        return self.end - time.monotonic()

    def run(self, name: str, command: Sequence[str], seconds: int, **variables: str) -> bool:
        """One step; its output goes into a log of its name. True: it was run and went well."""
        if not self.wanted(name):
            return False
        began = time.monotonic()
        left = self.left()
        if left < 1:
            self.add(name, "not run: no time is left", kind=FAILED)
            return False
        log = self.out / f"{name}.log"
        with log.open("w") as file:
            file.write("$ " + " ".join([*(f"{key}={value}" for key, value in variables.items()), *command]) + "\n")
            file.flush()
            result, kind = self._outcome(command, file, min(int(seconds * self._patience), int(left)), variables)
        if kind == DECLINED:
            result = _last_line(log)
        self.add(name, result, time.monotonic() - began, kind)
        return kind == OK

    def _outcome(
        self, command: Sequence[str], log: IO[str], seconds: float, variables: Mapping[str, str]
    ) -> tuple[str, str]:
        """Runs the command in a process group of its own, which ends with it."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **variables},
                start_new_session=True,
            )
        except OSError as error:
            return f"not there: {error}", FAILED
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"not ended within {seconds} s", FAILED
        if code == NOT_RUN:
            return "", DECLINED
        return ("ok", OK) if code == 0 else (f"ended with {code}", FAILED)

    def add(self, name: str, result: str, seconds: float = 0.0, kind: str = OK) -> None:
        """A row of the table."""
        self.rows.append(Row(name, result, seconds, kind))
        print(f"{name}: {result}", flush=True)
        self.write()

    def decline(self, name: str, why: str) -> None:
        """A step that cannot be run here, which is no failure."""
        if self.wanted(name):
            self.add(name, f"not run: {why}", kind=DECLINED)

    def judge(self, name: str, result: str, met: bool) -> None:
        """A figure next to its goal; a missed one is no failure."""
        if self.wanted(name):
            self.add(name, result, kind=OK if met else MISSED)

    def write(self) -> None:
        """The table."""
        lines = ["| step | result | seconds |", "|---|---|---|"]
        lines += [f"| {row.name} | {row.result} | {row.seconds:.1f} |" for row in self.rows]
        (self.out / "steps.md").write_text("\n".join(lines) + "\n")

    def failed(self) -> bool:
        """Did any step fail? The description of the machine may."""
        return any(row.kind == FAILED for row in self.rows if row.name != "machine")

    def missed(self) -> list[str]:
        """The goals that were missed."""
        return [row.name for row in self.rows if row.kind == MISSED]


def _end(process: subprocess.Popen[bytes]) -> None:
    """The launcher takes its job along when it is told. What hangs within the driver may not even hear SIGKILL: it is
    left behind."""
    for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        # The group's leader has gone; what it has left behind goes, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return


def _last_line(log: Path) -> str:
    """What a program has said last; of a worker without bpslaunch's name in front."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if "not run: " in line]
    return lines[-1][lines[-1].index("not run: ") :] if lines else "not run"
