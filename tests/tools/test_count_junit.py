"""The sums of tools/test: what counts as passed, failed and skipped."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runner() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))  # where Python finds the runner's neighbours when it is started
    spec = importlib.util.spec_from_file_location("test_runner", ROOT / "tools" / "test_runner.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_runner"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "tools"))


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ("", (0, 0, 0)),
        ('<testcase name="a" status="run" result="completed"/>', (1, 0, 0)),
        ('<testcase name="a"><failure message="x"/></testcase>', (0, 1, 0)),
        ('<testcase name="a"><error message="x"/></testcase>', (0, 1, 0)),
        ('<testcase name="a" result="skipped"><skipped message="x"/></testcase>', (0, 0, 1)),
        ('<testcase name="a" status="notrun" result="suppressed"/>', (0, 0, 1)),
        ('<testcase name="a"/><testcase name="b"><failure/></testcase>', (1, 1, 0)),
    ],
)
def test_counts_cases(runner: ModuleType, tmp_path: Path, cases: str, expected: tuple[int, int, int]) -> None:
    path = tmp_path / "test.xml"
    path.write_text(f'<testsuites><testsuite name="s">{cases}</testsuite></testsuites>')
    count = runner.count_junit(path)
    assert (count.passed, count.failed, count.skipped) == expected


def test_results_that_cannot_be_read_are_a_failure(runner: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cut.xml").write_text("<testsuites><testsuite>")
    assert runner.count_junit(tmp_path / "cut.xml").failed == 1
    assert runner.count_junit(tmp_path / "missing.xml").failed == 1


def test_the_last_line_has_the_agreed_form(runner: ModuleType) -> None:
    assert str(runner.Count(3, 0, 1)) == "3 passed, 0 failed, 1 skipped"


def test_what_failed_is_named_before_the_last_line(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader of the end alone, where other output was cut off, must find what to look for."""
    path = tmp_path / "test.xml"
    path.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="Engine" name="Sums"><failure/></testcase>'
        '<testcase classname="Engine" name="Waits"/>'
        "</testsuite></testsuites>"
    )
    report = runner.Report()
    report.add(runner.Step("C++ tests", runner.count_junit(path), 1))
    report.add(runner.Step("Python tests 1", runner.count_junit(tmp_path / "missing.xml"), 1))
    report.add(runner.Step("build", runner.Count(failed=1), 1))
    report.add(runner.Step("lint", runner.Count(passed=6), 1))
    assert report.end() == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "failed: Engine.Sums (C++ tests)",
        f"failed: {tmp_path / 'missing.xml'} (Python tests 1)",
        "failed: build",
        "7 passed, 3 failed, 0 skipped",
    ]


def test_a_sharded_test_has_a_file_for_each_shard(runner: ModuleType, tmp_path: Path) -> None:
    assert runner.result_files(tmp_path) == []
    for shard in (1, 2):
        folder = tmp_path / f"shard_{shard}_of_2"
        folder.mkdir()
        (folder / "test.xml").write_text("<testsuites/>")
    assert len(runner.result_files(tmp_path)) == 2
    (tmp_path / "test.xml").write_text("<testsuites/>")
    assert runner.result_files(tmp_path) == [tmp_path / "test.xml"]
