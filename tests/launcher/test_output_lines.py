"""Cutting streams into lines, and prefixes."""

from __future__ import annotations

import os
import pathlib
import pty
import random

import pytest

from launcher.output import LineSplitter, OutputFiles, Printer


def test_any_cut_gives_the_same_lines() -> None:
    text = b"one\ntwo\r\n\nthree\xff\xfe\nlast"
    generator = random.Random(1)
    for _ in range(300):
        lines, start, splitter = [], 0, LineSplitter()
        while start < len(text):
            end = start + generator.randint(1, 6)
            lines += splitter.feed(text[start:end], 0.0)
            start = end
        assert lines + splitter.flush() == [b"one", b"two", b"", b"three\xff\xfe", b"last"]


def test_progress_bars_appear_once_a_second() -> None:
    splitter = LineSplitter()
    lines = []
    for step in range(1001):
        lines += splitter.feed(f"\r{step / 10:.1f}%".encode(), now=step * 0.01)
    assert 9 <= len(lines) <= 11
    assert splitter.feed(b"\rdone\n", now=11.0) == [b"done"]
    assert splitter.flush() == []


def test_the_last_state_of_a_progress_bar_is_shown() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"10%\r20%\r100%\n", now=0.0) == [b"100%"]
    assert splitter.feed(b"a\rb", now=0.0) == [b"a"]
    assert splitter.flush() == [b"b"]


def test_endless_lines_do_not_eat_memory() -> None:
    splitter = LineSplitter()
    total = 0
    for _ in range(100):
        lines = splitter.feed(b"x" * 50_000, 0.0)
        assert all(len(line) <= 64 * 1024 for line in lines)
        total += sum(map(len, lines))
    assert total + sum(map(len, splitter.flush())) == 100 * 50_000


def written(name: str, lines: list[bytes], read: int, write: int) -> bytes:
    os.write(write, Printer().text(name, write, lines))
    return os.read(read, 4096)


def test_no_colours_in_a_pipe() -> None:
    read, write = os.pipe()
    assert written("worker 0", [b"hello"], read, write) == b"[worker 0] hello\n"


def test_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    read, write = pty.openpty()
    assert written("worker 0", [b"hello"], read, write) == b"\033[36m[worker 0] \033[0mhello\r\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written("worker 0", [b"hello"], read, write) == b"[worker 0] hello\r\n"


@pytest.mark.parametrize("restarts, kept", [(None, False), ("", False), ("0", False), ("1", True), ("12", True)])
def test_files_of_a_job_that_was_started_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, restarts: str | None, kept: bool
) -> None:
    """Slurm counts the restarts of a requeued job; what the first attempt wrote stays then."""
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    with OutputFiles(str(tmp_path)).open("worker 0", "stdout") as first:
        first.write(b"first\n")
    if restarts is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    with OutputFiles(str(tmp_path)).open("worker 0", "stdout") as second:
        second.write(b"second\n")
    assert (tmp_path / "worker0.stdout").read_bytes() == (b"first\n" if kept else b"") + b"second\n"
