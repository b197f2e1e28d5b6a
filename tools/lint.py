"""Checks what a compiler does not: format, Python lint, that dependencies point one way, and that the text of the tree
wraps and points to what exists.

Prints one line per check, "ok NAME", "skipped NAME: why" or "failed NAME: what", the last preceded by the details.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import docs_check

ROOT = Path(__file__).resolve().parent.parent

# "Nothing in the first room may depend on anything in the second." The tree's direction: bindings -> abi <- plugins;
# core -> abi; server, launcher, tools -> core. Where something is excepted, what that one depends on is its own affair:
# only what targets of the room name themselves is looked at.
FORBIDDEN = [
    ("//transport_plugins/...", "//core/..."),
    ("//scheduler_plugins/...", "//core/..."),
    ("//device_plugins/...", "//core/..."),
    ("//transport_plugins/...", "//server/..."),
    ("//frameworks/...", "//core/... except //core:libbyteps.so"),
    ("//core/...", "//server/..."),
    ("//server/...", "//core/worker/..."),
    ("//core/...", "//transport_plugins/..."),
    ("//core/...", "//scheduler_plugins/..."),
    ("//core/...", "//device_plugins/..."),
    ("//abi/...", "//core/..."),
]

# What mypy looks at.
TYPED = ["launcher", "tools/gpu", "tools/install", "tools/lab", "tools/netlab.py", "tools/packaging"]


def tracked(*patterns: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [line for line in done.stdout.splitlines() if (ROOT / line).exists()]


def run(command: list[str]) -> tuple[bool, str]:
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def check_format() -> str | None:
    """clang-format, of one version: others format a little differently."""
    if shutil.which("clang-format-14") is None:
        return "skip: clang-format-14 is not on this distribution"
    ok, text = run(
        ["clang-format-14", "--dry-run", "--Werror", *tracked("*.h", "*.cc", "*.c")],
    )
    return None if ok else text


def check_ruff() -> str | None:
    ok, text = run([sys.executable, "-m", "ruff", "check", "."])
    return None if ok else text


def check_ruff_format() -> str | None:
    ok, text = run([sys.executable, "-m", "ruff", "format", "--check", "."])
    return None if ok else text


def check_types() -> str | None:
    """mypy, of the folders whose imports it finds without a framework or a built package."""
    ok, text = run([sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", ".deps/mypy", *TYPED])
    return None if ok else text


def check_dependencies() -> str | None:
    problems = []
    for room, other in FORBIDDEN:
        target, reached = other, f"deps({room})"
        if " except " in other:
            target, reached = other.replace(" except ", " except set(") + ")", f"deps({room}, 1)"
        if not (ROOT / room.split("/...")[0].lstrip("/")).is_dir():
            continue
        if not (ROOT / other.split("/...")[0].lstrip("/")).is_dir():
            continue
        ok, text = run(
            [
                "bazel",
                "query",
                "--noshow_progress",
                "--ui_event_filters=-info",
                f"{reached} intersect ({target})",
            ]
        )
        found = [line for line in text.splitlines() if line.startswith("//")]
        if not ok or found:
            problems.append(f"{room} reaches {other}: {' '.join(found) if ok else text}")
    return "\n".join(problems) or None


def check_width() -> str | None:
    """Comments of C, C++ and protocol files wrap, too: clang-format leaves them alone (.clang-format says why)."""
    wide = [
        f"{name}:{number}: {len(line)} columns, more than {docs_check.WIDTH}"
        for name in tracked("*.h", "*.hpp", "*.c", "*.cc", "*.proto")
        if not name.startswith(("third_party/", "tests/abi/v1_"))
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if len(line) > docs_check.WIDTH
    ]
    return "\n".join(wide) or None


def check_docs() -> str | None:
    problems = [problem for name in tracked("*.md") for problem in docs_check.check(ROOT / name, ROOT)]
    return "\n".join(problems) or None


CHECKS = {
    "clang-format": check_format,
    "ruff": check_ruff,
    "ruff-format": check_ruff_format,
    "types": check_types,
    "dependency-direction": check_dependencies,
    "width": check_width,
    "docs": check_docs,
}


def main() -> int:
    failed = 0
    for name, check in CHECKS.items():
        problem = check()
        if problem is None:
            print(f"ok {name}")
        elif problem.startswith("skip: "):
            print(f"skipped {name}: {problem.removeprefix('skip: ')}")
        else:
            print(problem.rstrip())
            print(f"failed {name}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
