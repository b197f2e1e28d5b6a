"""What a check before the job found: one line for people."""

from __future__ import annotations

import dataclasses
import enum


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # worth knowing; the job can run
    FAIL = "FAIL"  # the job cannot run


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check. The text of a failure ends with what to do."""

    level: Level
    subject: str
    text: str

    def line(self) -> str:
        """The finding as it is printed."""
        return f"{self.level.value:<5} {self.subject:<11} {self.text}"


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    """Not wrong, but it may explain something."""
    return Finding(Level.NOTE, subject, text)


def fail(subject: str, text: str) -> Finding:
    """The job would not run."""
    return Finding(Level.FAIL, subject, text)
