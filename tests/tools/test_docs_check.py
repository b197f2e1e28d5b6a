"""tools/docs_check.py on pages that are right and wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import docs_check

LONG = "word " * 30


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "engine.h").touch()
    (tmp_path / "docs").mkdir()
    return tmp_path


def problems_of(tree: Path, text: str) -> list[str]:
    page = tree / "docs" / "page.md"
    page.write_text(text)
    return docs_check.check(page, tree)


@pytest.mark.parametrize(
    "text",
    [
        "Short.\n",
        "| a | b |\n|:---|---:|\n| 1 | 2 |\n",
        f"| {LONG} |\n",
        f"```\n| {LONG} |\n```\n",
        "```\ncc `core/gone.h`\n```\n",
        "[engine](../core/engine.h), [part](#part), [site](https://example.org/x.h)\n",
        "`core/engine.h`, `core/engine`, `other/engine.h`, `*.h`\n",
    ],
)
def test_what_is_right_passes(tree: Path, text: str) -> None:
    assert problems_of(tree, text) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{LONG}\n", "docs/page.md:1: 150 columns, more than 120"),
        (f"Text\n    {LONG}\n", "docs/page.md:2:"),
        (f"Text:\n\n    {LONG}\n", "docs/page.md:3:"),
        (f"```\n{LONG}\n```\n", "docs/page.md:2:"),
        (f"* item\n  {LONG}\n", "docs/page.md:2:"),
        ("| a | b | |---|---|\n| 1 | 2 |\n", "docs/page.md:1: the rows of a table"),
        ("[engine](../core/gone.h)\n", "docs/page.md:1: the link to ../core/gone.h leads nowhere"),
        ("see `core/gone.h`\n", "docs/page.md:1: there is no core/gone.h"),
    ],
)
def test_what_is_wrong_is_named(tree: Path, text: str, told: str) -> None:
    (problem,) = problems_of(tree, text)
    assert problem.startswith(told)
