"""Makes a manual page (man(7)) of what a program says to --help.

    make_man.py NAME RELEASE "what it is, in one line" < help > NAME.1

What stands at the left margin and ends with a colon, or is in capitals, is a heading. A line that begins with an option
starts an item, whose text goes on while it is indented further. Everything else keeps its lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_HEADING = re.compile(r"^([A-Z][A-Z ]+|[a-z][^:]*:)$")
_OPTION = re.compile(r"^ {1,6}(-\S.*?)(?: {2,}(\S.*))?$")


def escaped(line: str) -> str:
    """A line of text, safe from troff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + line if line.startswith((".", "'")) else line


def body(lines: Iterable[str]) -> Iterable[str]:
    """The page without its head."""
    item = verbatim = False
    for line in lines:
        option = _OPTION.match(line)
        if _HEADING.match(line):
            yield from (".fi",) if verbatim else ()
            item = verbatim = False
            yield f".SH {escaped(line.rstrip(':').upper())}"
        elif option:
            yield from (".fi",) if verbatim else ()
            item, verbatim = True, False
            yield ".TP"
            yield f"\\fB{escaped(option[1])}\\fR"
            if option[2]:
                yield escaped(option[2])
        elif item and line.startswith(" " * 8):
            yield escaped(line.strip())
        else:
            if item and line:
                yield ".PP"
            if line:
                item = False
            if not verbatim and not item:
                yield ".nf"
                verbatim = True
            if not item:
                yield escaped(line.removeprefix("    "))
    if verbatim:
        yield ".fi"


def page(name: str, release: str, summary: str, text: str) -> str:
    """The whole page."""
    lines = text.rstrip("\n").split("\n")
    out = [f'.TH {name.upper()} 1 "" "BytePS {release}" "BytePS"', ".SH NAME", f"{name} \\- {escaped(summary)}"]
    # A help that is a page already begins with its name.
    if lines[0] == "NAME":
        lines = lines[lines.index("SYNOPSIS") :]
    else:
        end = lines.index("") if "" in lines else len(lines)
        usage = [line.removeprefix("usage: ").strip() for line in lines[:end]]
        if lines[0].startswith("usage:"):
            out += [".SH SYNOPSIS", ".nf", *map(escaped, usage), ".fi"]
            lines = lines[end + 1 :]
        out += [".SH DESCRIPTION"]
    return "\n".join([*out, *body(lines)]) + "\n"


if __name__ == "__main__":
    name, release, summary = sys.argv[1:4]
    sys.stdout.write(page(name, release, summary, sys.stdin.read()))
