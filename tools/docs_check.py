"""Checks the Markdown of the tree: text wraps, and what it points to exists.

    problems = check(Path("docs/architecture.md"), root)

A line of text or code is at most WIDTH columns; tables are as wide as they must be, and have a line for each row. A
link to a file of the tree, and a path in backquotes that names a file of one of its rooms, must exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\s]+)`")
_FILE = re.compile(r"[\w.+-]+(?:/[\w.+-]+)+\.(?:h|hpp|cc|c|cu|py|pyi|md|proto|bzl|rs|jl|txt|toml|lds|yaml)")


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number, line, and whether it belongs to code."""
    fenced = indented = False
    blank = True
    in_list = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if stripped.startswith("```"):
            fenced = not fenced
            yield number, line, True
            continue
        if re.match(r"\s*(?:[-*+]|\d+\.)\s", line):
            in_list = True
        elif stripped and not line.startswith(" "):
            in_list = False
        deep = line.startswith("        " if in_list else "    ")
        indented = deep and (blank or indented)
        blank = not stripped
        yield number, line, fenced or indented


def check(path: Path, root: Path) -> list[str]:
    """What is wrong with one file, a line each: "docs/x.md:12: what"."""
    text = path.read_text()
    place = path.relative_to(root)
    rooms = {entry.name for entry in root.iterdir() if entry.is_dir()}
    problems = []
    for number, line, code in _lines(text):
        if len(line) > WIDTH and not line.lstrip().startswith(("|", "<!--", "http")):
            problems.append(f"{place}:{number}: {len(line)} columns, more than {WIDTH}")
        if code:
            continue
        if "|---" in line and not re.fullmatch(r"\s*\|[-:| ]+\|", line):
            problems.append(f"{place}:{number}: the rows of a table are not on lines of their own")
        for target in _LINK.findall(line):
            if "://" in target or target.startswith(("#", "mailto:")):
                continue
            if not (path.parent / target.split("#")[0]).exists():
                problems.append(f"{place}:{number}: the link to {target} leads nowhere")
        for name in _CODE.findall(line):
            if _FILE.fullmatch(name) and name.split("/")[0] in rooms and not (root / name).exists():
                problems.append(f"{place}:{number}: there is no {name}")
    return problems
