"""What tools/test builds while the Python tests wait: in order, and ended where it stands."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0


@pytest.fixture(scope="module")
def background_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("background_build", ROOT / "tools" / "background_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_bazel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a `bazel` that runs `body` first on the path; the file where it may write."""

    def make(body: str) -> Path:
        program = tmp_path / "bazel"
        told = tmp_path / "told"
        told.touch()
        program.write_text(f"#!/bin/sh\ntold={told}\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return told

    return make


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_builds_one_after_the_other(background_build: ModuleType, fake_bazel: Callable[[str], Path]) -> None:
    told = fake_bazel('echo "begin $*" >> $told; echo end >> $told')
    log = told.parent / "logs" / "build.log"
    builds = [(["//a", "//b"], ["asan", "ubsan"]), ([], ["nothing"]), (["//a"], ["tsan"])]
    with background_build.BackgroundBuild(builds, told.parent, log):
        wait_for(lambda: told.read_text().count("end") == 2)
    first, end, second, last = told.read_text().splitlines()
    assert first.startswith("begin build ") and first.endswith(" --config=asan --config=ubsan //a //b")
    assert second.startswith("begin build ") and second.endswith(" --config=tsan //a")
    assert end == last == "end"
    assert "--jobs=1" in first and "--symlink_prefix=/" in first
    assert log.exists()


def test_leaving_asks_bazel_to_stop_and_begins_no_other(
    background_build: ModuleType, fake_bazel: Callable[[str], Path]
) -> None:
    told = fake_bazel(
        'trap "echo interrupted >> $told; exit 8" TERM; echo begin >> $told; while :; do sleep 0.05; done'
    )
    with background_build.BackgroundBuild([(["//a"], []), (["//b"], [])], told.parent, told.parent / "log"):
        wait_for(lambda: "begin" in told.read_text())
    assert told.read_text().split() == ["begin", "interrupted"]


def test_what_cannot_be_built_holds_up_nothing(background_build: ModuleType, fake_bazel: Callable[[str], Path]) -> None:
    told = fake_bazel("echo begin >> $told; exit 1")
    with background_build.BackgroundBuild([(["//a"], []), (["//b"], [])], told.parent, told.parent / "log"):
        wait_for(lambda: told.read_text().split() == ["begin", "begin"])
