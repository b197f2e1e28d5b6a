"""What tools/test runs beside its other steps: its output and end are known; leaving early leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0


@pytest.fixture(scope="module")
def side_process() -> ModuleType:
    spec = importlib.util.spec_from_file_location("side_process", ROOT / "tools" / "side_process.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_runs_beside_and_tells_its_end(side_process: ModuleType, tmp_path: Path) -> None:
    go = tmp_path / "go"
    log = tmp_path / "logs" / "side.log"
    script = f"while [ ! -e {go} ]; do sleep 0.01; done; echo out; echo err >&2; exit 3"
    with side_process.SideProcess(["sh", "-c", script], tmp_path, log) as side:
        assert side.running()
        go.touch()
        assert side.wait() == 3
        assert not side.running()
        assert 0 < side.seconds() < DEADLINE
    assert log.read_text().split() == ["out", "err"]


def test_leaving_asks_it_to_end(side_process: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = 'trap "echo interrupted; exit 1" INT; echo begun; while :; do sleep 0.01; done'
    with side_process.SideProcess(["sh", "-c", script], tmp_path, log):
        wait_for(lambda: log.read_text() != "")
    assert log.read_text().split() == ["begun", "interrupted"]


def test_who_does_not_end_is_killed_with_its_children(
    side_process: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_process.end, "__defaults__", (0.1,))
    log = tmp_path / "log"
    script = 'trap "" INT; sleep 1000 & echo $! $$; wait'
    with side_process.SideProcess(["sh", "-c", script], tmp_path, log):
        wait_for(lambda: log.read_text().endswith("\n"))
    pids = [int(word) for word in log.read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_a_stop_in_the_middle_of_a_start_leaves_nothing(
    side_process: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        """One that is stopped before the child is known."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(side_process.subprocess, "Popen", Popen)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with pytest.raises(SystemExit), ExitStack() as stack:
            with side_process.stops_held_back():
                stack.enter_context(side_process.SideProcess(["sleep", "1000"], tmp_path, tmp_path / "log"))
            pytest.fail("not stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
        ends = [child.returncode for child in started]
        for child in started:
            child.kill()
    assert ends == [-signal.SIGINT]


# A runner whose "bazel" and "python" are the test's.
_RUNNER = """\
import sys
sys.path.insert(0, {tools!r})
import test_runner as runner
from pathlib import Path
runner.RESULTS = Path({folder!r}) / "results"
runner.install_wheel = lambda *_: True
runner.environments = lambda: []
runner.python_lanes = lambda: [["one"], ["two"]]
runner.bazel_tests = lambda *_: ["//a:a_test"]
runner.has_cuda_toolkit = lambda: False
runner.abseil_config = lambda: []
sys.executable = {folder!r} + "/python"
sys.argv = ["tools/test", "--set-up-took=7", *{more!r}]
sys.exit(runner.main())
"""


class Runner:
    """A runner of a test, and what it prints."""

    def __init__(self, folder: Path, more: tuple[str, ...]) -> None:
        self._log = folder / "log"
        source = _RUNNER.format(tools=str(ROOT / "tools"), folder=str(folder), more=more)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", source], env=environment, stdout=log, stderr=log)

    def finish(self) -> tuple[int, str]:
        """Waits for it to end; its exit status and output."""
        status = self.process.wait(DEADLINE)
        return status, self._log.read_text()


@pytest.fixture
def start_runner(tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    """Starts a runner whose `bazel` and `python` are scripts of the shell; they may write "begun" and who they are into
    `told`."""
    runners = []

    def start(bazel: str, python: str, *more: str) -> Runner:
        for name, body in (("bazel", bazel), ("python", python)):
            (tmp_path / name).write_text(f"#!/bin/sh\nfolder={tmp_path}\n{body}")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "told").touch()
        runners.append(Runner(tmp_path, more))
        return runners[-1]

    yield start
    for runner in runners:
        runner.process.kill()
        runner.process.wait()
    for pid in re.findall(r"begun (\d+)", (tmp_path / "told").read_text()):
        if alive(int(pid)):  # The test has failed.
            os.kill(int(pid), signal.SIGKILL)


_WAITING = """\
[ "$1" = build ] && exit 0
[ "$1" = info ] && echo $folder && exit 0
trap "echo ended $$ >>$folder/told; exit 8" INT TERM
echo begun $$ >>$folder/told
while :; do sleep 0.01; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_runner_that_is_stopped_ends_all_it_has_started(
    start_runner: Callable[..., Runner], tmp_path: Path, number: signal.Signals
) -> None:
    runner = start_runner(_WAITING, _WAITING)
    told = tmp_path / "told"
    # Two processes of Python tests, and `bazel test`.
    wait_for(lambda: told.read_text().count("begun") == 3 or runner.process.poll() is not None)
    runner.process.send_signal(number)
    status, text = runner.finish()
    assert status == 128 + number, text
    words = [line.split() for line in told.read_text().splitlines()]
    begun = {pid for word, pid in words if word == "begun"}
    assert begun == {pid for word, pid in words if word == "ended"}
    assert not any(alive(int(pid)) for pid in begun)


_BAZEL = """\
[ "$1" = info ] && mkdir -p $folder/a/a_test && echo $folder
[ "$1" = test ] && echo '<testsuites><testcase name="a"/><testcase name="b"/></testsuites>' >$folder/a/a_test/test.xml
echo "bazel $*" >>$folder/told
exit 0
"""

# The Python tests of "one" pass once the last of the Bazel tests has begun: they run beside them. One of "two" fails.
_PYTHON = """\
case "$*" in
tools/lint.py) echo ok format ;;
*one) echo begun $$ >>$folder/told; until grep -q "test .*tsan" $folder/told; do sleep 0.01; done
  echo '<testsuites><testcase name="c"/></testsuites>' >$6 ;;
*two) echo "what is wrong"; echo '<testsuites><testcase name="d"><failure/></testcase></testsuites>' >$6; exit 1 ;;
esac
"""


def test_a_runner_adds_up_its_steps_and_tells_their_time(start_runner: Callable[..., Runner], tmp_path: Path) -> None:
    runner = start_runner(_BAZEL, _PYTHON)
    status, text = runner.finish()
    assert status == 1, text
    assert "what is wrong" in text
    # The fuzz targets, two cases more, where libFuzzer is installed.
    fuzzed = "fuzz: no libFuzzer here" not in text
    passed, skipped = (10, 1) if fuzzed else (8, 2)
    assert text.splitlines()[-1] == f"{passed} passed, 1 failed, {skipped} skipped"
    assert text.splitlines()[-2] == "failed: d (Python tests 2)"
    summary = text.splitlines()[-13:-2]
    assert summary[0] == "set-up: 7 s"
    assert sorted(line.split(":")[0] for line in summary[1:]) == [
        "C++ tests",
        "C++ tests under asan and ubsan",
        "C++ tests under tsan",
        "CUDA kernels",
        "Python tests 1",
        "Python tests 2",
        "build",
        "fuzz targets",
        "lint",
        "wheel",
    ]
    assert all(re.search(r" [0-9]+ s$", line) for line in summary)


def test_nothing_runs_that_was_not_built(start_runner: Callable[..., Runner], tmp_path: Path) -> None:
    runner = start_runner('echo "bazel $1" >>$folder/told; exit 1', "echo ok format")
    status, text = runner.finish()
    assert status == 1
    assert text.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert (tmp_path / "told").read_text() == "bazel build\n"


# What runs under asan does not end by itself.
_SLOW_BAZEL = """\
[ "$1" = build ] && exit 0
[ "$1" = info ] && mkdir -p $folder/a/a_test && echo $folder && exit 0
case "$*" in
*asan*) trap "echo ended $$ >>$folder/told; exit 8" INT TERM; echo begun $$ >>$folder/told
  while :; do sleep 0.01; done ;;
*) echo '<testsuites><testcase name="a"/></testsuites>' >$folder/a/a_test/test.xml ;;
esac
"""

_QUICK_PYTHON = """\
case "$*" in
tools/lint.py) echo ok format ;;
*) echo '<testsuites><testcase name="c"/></testsuites>' >$6 ;;
esac
"""


def test_what_has_no_time_under_the_sanitizers_is_skipped_and_named(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    # Of these seconds set-up took 7.
    runner = start_runner(_SLOW_BAZEL, _QUICK_PYTHON, f"--minutes={(7 + 15) / 60}")
    status, text = runner.finish()
    assert status == 0, text
    words = (tmp_path / "told").read_text().split()
    assert words == ["begun", words[1], "ended", words[1]]
    assert "//a:a_test: not run, no time was left (--minutes)" in text
    assert "no time is left (--minutes) for: //a:a_test" in text
    assert re.search(r"^C\+\+ tests under asan and ubsan: 0 passed, 0 failed, 1 skipped", text, re.MULTILINE)
    assert re.search(r"^C\+\+ tests under tsan: 0 passed, 0 failed, 1 skipped", text, re.MULTILINE)
    assert text.splitlines()[-1] == "4 passed, 0 failed, 4 skipped"


def test_sanitizers_compile_behind_the_python_tests_and_test_beside_them(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as server:
        try:
            autogroup = Path(f"/proc/{server.pid}/autogroup")
            if not autogroup.exists():
                pytest.skip("this kernel does not schedule by session")
            look = f'echo "did $1 $2 $(cut -d" " -f2- {autogroup})" >>$folder/told\n'
            pid = f'case "$*" in *server_pid) echo {server.pid}; exit 0 ;; esac\n'
            runner = start_runner(look + pid + _BAZEL, _PYTHON)
            _, text = runner.finish()
            seen = [line for line in (tmp_path / "told").read_text().splitlines() if line.startswith("did ")]
            for config in ("asan", "tsan"):
                assert f"did build --config={config} nice 10" in seen, text
                assert f"did test --config={config} nice 0" in seen, text
            assert autogroup.read_text().endswith("nice 0\n")
        finally:
            server.kill()
