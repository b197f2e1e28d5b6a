"""The virtual environments of frameworks that do not go into .venv; see tools/frameworks/README.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tools" / "frameworks"


@dataclass(frozen=True)
class Environment:
    """One of them."""

    name: str
    tests: tuple[str, ...]  # folders
    by_default: tuple[str, ...]  # of them, or files there: what runs where nobody has asked for this framework

    @property
    def python(self) -> Path:
        """Its interpreter, if it was installed."""
        return ROOT / f".venv-{self.name}" / "bin" / "python"

    def is_there(self) -> bool:
        """Whether tools/setup has made it, to the end."""
        stamp = self.python.parent.parent / "requirements.stamp"
        return self.python.exists() and stamp.exists()


def environments() -> list[Environment]:
    """All that are listed."""
    found = []
    for path in sorted(LISTS.glob("*.txt")):
        tests = _words(path, "tests")
        found.append(Environment(path.stem, tests, _words(path, "by default") or tests))
    return found


def _words(path: Path, name: str) -> tuple[str, ...]:
    """Behind "# NAME:"."""
    found = re.findall(rf"^# {name}: (.*)$", path.read_text(), re.MULTILINE)
    return tuple(" ".join(found).split())
