"""Runs every kind of test there is and adds up the results; tools/test is the way in.

Each step yields a `Count`. Bazel's and pytest's results are read from the JUnit files both write, so that a GoogleTest
case counts like a pytest case.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from background_build import BackgroundBuild

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".deps" / "results"

# C++ tests that also run under the sanitizers: those whose label carries this tag.
SANITIZER_TAG = "sanitize"


@dataclass
class Count:
    """Test cases of one step."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_junit(path: Path) -> Count:
    """The cases of a JUnit file, as GoogleTest, Bazel and pytest write it.

    A file that cannot be read is one failure: a test that died before it could write its results must not vanish.
    """
    count = Count()
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Count(failed=1)
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "suppressed":
            count.skipped += 1
        else:
            count.passed += 1
    return count


def run(command: Sequence[str], **kwargs: object) -> int:
    """Runs a command with its output on ours; its exit status."""
    print("+ " + " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False, **kwargs).returncode  # type: ignore[call-overload]


def output(command: Sequence[str]) -> list[str]:
    """The lines a command prints; its errors go to ours. Raises CalledProcessError."""
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def bazel_tests(pattern: str | None, tag: str | None = None) -> list[str]:
    """The labels of the Bazel tests that contain `pattern` and carry `tag`, but for those that ask for what is not
    everywhere ("manual")."""
    query = "tests(//...)" if tag is None else f'attr(tags, "\\b{tag}\\b", tests(//...))'
    query += ' except attr(tags, "\\bmanual\\b", tests(//...))'
    labels = output(["bazel", "query", "--noshow_progress", query])
    return sorted(label for label in labels if pattern is None or pattern in label)


def result_files(logs: Path) -> list[Path]:
    """The JUnit files of one Bazel test; a sharded test has one for each shard, all of the same number."""
    if (logs / "test.xml").exists():
        return [logs / "test.xml"]
    shards = sorted(path for path in logs.glob("shard_*_of_*") if path.is_dir())
    if not shards:
        return []
    # An earlier run may have had another number of shards: the newest says how many there are.
    newest = max(shards, key=lambda path: path.stat().st_mtime).name.rsplit("_of_", 1)[1]
    return [path / "test.xml" for path in shards if path.name.endswith(f"_of_{newest}")]


def run_bazel(labels: list[str], configs: Sequence[str] = ()) -> Count:
    """Runs Bazel tests and counts their cases; a test that did not build or run is one failure."""
    flags = [f"--config={config}" for config in configs]
    if not labels:
        return Count()
    logs = Path(output(["bazel", "info", "--noshow_progress", *flags, "bazel-testlogs"])[0])
    started = time.time()
    status = run(
        [
            "bazel",
            "test",
            *flags,
            "--keep_going",
            "--test_output=errors",
            "--show_progress_rate_limit=10",
            # What is under bazel-bin stays the default build.
            *(["--symlink_prefix=/"] if configs else []),
            # Sanitizers slow a test down ten times and more.
            *(["--test_timeout=900"] if configs else []),
            *labels,
        ]
    )
    count = Count()
    for label in labels:
        results = result_files(logs / label.lstrip("/").replace(":", "/"))
        # Status 1: something did not build; an old result proves nothing then.
        if not results or (
            status == 1 and any(not path.exists() or path.stat().st_mtime < started for path in results)
        ):
            print(f"{label}: no result")
            count.failed += 1
        for path in results:
            count += count_junit(path)
    if status != 0 and count.failed == 0:
        count.failed += 1
    return count


def step_native(pattern: str | None) -> Count:
    """Builds everything and runs the Bazel tests."""
    labels = bazel_tests(pattern)
    if pattern is None and run(["bazel", "build", "--show_progress_rate_limit=10", "//..."]) != 0:
        return Count(failed=1)
    return run_bazel(labels)


def install_wheel() -> bool:
    """Builds the wheel and puts it into .venv, if it is not there already."""
    if run(["bazel", "build", "--show_progress_rate_limit=10", "//frameworks/python:wheel"]) != 0:
        return False
    return run([sys.executable, "tools/install_wheel.py"]) == 0


def step_python(pattern: str | None) -> Count:
    """Installs the package and runs the pytest files under tests/."""
    paths = sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")})
    if not paths:
        return Count()
    if not install_wheel():
        return Count(failed=1)
    results = RESULTS / "pytest.xml"
    RESULTS.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    select = ["-k", pattern] if pattern is not None else []
    # These tests wait for processes most of the time, the sanitizers' step compiles most of the time.
    with BackgroundBuild(sanitizer_builds() if pattern is None else [], ROOT, RESULTS / "background_build.log"):
        status = run([sys.executable, "-m", "pytest", "-q", "-rs", "--junit-xml", str(results), *select, *paths])
    if status == 5:  # nothing selected
        return Count()
    count = count_junit(results)
    if status != 0 and count.failed == 0:
        count.failed += 1
    return count


def step_lint(_: str | None) -> Count:
    """Format, Python lint, and the direction of dependencies; each is one case."""
    return run_lint()


def run_lint() -> Count:
    count = Count()
    for line in subprocess.run(
        [sys.executable, "tools/lint.py"], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines():
        print(line)
        count += Count(
            passed=line.startswith("ok "),
            failed=line.startswith("failed "),
            skipped=line.startswith("skipped "),
        )
    if count == Count():
        count.failed = 1
    return count


def abseil_config() -> list[str]:
    """What the sanitizers need for the installed Abseil: a configuration of .bazelrc, or none."""
    found = re.search(r"#define ABSL_LTS_RELEASE_VERSION (\d+)", Path("/usr/include/absl/base/config.h").read_text())
    return ["newer_abseil"] if found and int(found[1]) >= 20240000 else []


def sanitizer_builds() -> list[tuple[list[str], list[str]]]:
    """The fast C++ tests, and the configurations of .bazelrc in which they run again."""
    labels = bazel_tests(None, SANITIZER_TAG)
    newer = abseil_config()
    return [(labels, ["asan", "ubsan", *newer]), (labels, ["tsan", *newer])]


def step_sanitizers(_: str | None) -> Count:
    """The fast C++ tests again, under the sanitizers."""
    return sum((run_bazel(labels, configs) for labels, configs in sanitizer_builds()), Count())


def step_soft_roce(_: str | None) -> Count:
    """The verbs transport in a virtual machine with a soft-RoCE device; each PASS and FAIL it prints is one case."""
    count = Count()
    command = ["tools/soft_roce/run"]
    print("+ " + " ".join(command), flush=True)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            count += Count(passed=line.startswith("PASS "), failed=line.startswith("FAIL "))
    if process.returncode != 0 and count.failed == 0:
        count.failed += 1
    return count


Step = tuple[str, Callable[[str | None], Count], bool]

# Name, function, and whether it also runs when a PATTERN is given.
STEPS: list[Step] = [
    ("C++ tests", step_native, True),
    ("Python tests", step_python, True),
    ("lint", step_lint, False),
    ("C++ tests under sanitizers", step_sanitizers, False),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test", description=__doc__)
    parser.add_argument("pattern", nargs="?", help="run only tests whose name contains this")
    parser.add_argument("--soft-roce", action="store_true", help="run the verbs transport in a virtual machine instead")
    parser.add_argument("--list", action="store_true", help="list the Bazel tests and pytest files")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if arguments.list:
        print("\n".join(bazel_tests(arguments.pattern)))
        print("\n".join(sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py"))))
        return 0

    total = Count()
    summary: list[str] = []
    steps = [step for step in STEPS if arguments.pattern is None or step[2]]
    if arguments.soft_roce:
        steps = [("verbs on soft-RoCE", step_soft_roce, False)]
    for number, (name, step, _) in enumerate(steps, 1):
        print(f"\n==== {number}/{len(steps)} {name}", flush=True)
        started = time.monotonic()
        count = step(arguments.pattern)
        total += count
        summary.append(f"{name}: {count} in {time.monotonic() - started:.0f} s")
        print(f"---- {summary[-1]}", flush=True)
    print("\n" + "\n".join(summary))
    if total.passed == 0:
        print("no test ran: nothing matched, or nothing could be built")
    print(total)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
