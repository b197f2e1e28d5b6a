"""The output of many processes: nothing is lost, and it costs little."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from launching import Launch, Start, Worker

WORKERS = 64
SECONDS = 4
RATE = 10_000  # lines a second, of all together

NOISY = f"""
import os, sys, time
started, written = time.monotonic(), 0
while written < {SECONDS * RATE // WORKERS}:
    due = min(int((time.monotonic() - started) * {RATE / WORKERS}) + 1, {SECONDS * RATE // WORKERS})
    for number in range(written, due):
        sys.stdout.write(f"line {{number}}, with some more text, to be as long as a line of a log\\n")
    sys.stdout.flush()
    written = due
    time.sleep(0.05)
"""


def supervisor_of(launch: Launch) -> int:
    pid = launch.process.pid
    for _ in range(2):  # the keeper, and its child
        pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def seconds_of_cpu(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("where", [("--workers", str(WORKERS)), ("--hosts", f"localhost:{WORKERS}")])
def test_many_lines_of_many_processes(
    start: Start, worker: Worker, tmp_path: pathlib.Path, where: tuple[str, str]
) -> None:
    go = tmp_path / "go"
    wait = f"print('written', flush=True)\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
    launch = start(*where, "--", *worker(NOISY + wait))
    launch.wait_for("written", WORKERS)
    used = seconds_of_cpu(supervisor_of(launch))
    go.touch()
    assert launch.wait() == 0, launch.stderr
    found = re.findall(r"^\[worker (\d+)\] line (\d+),", launch.stdout, re.MULTILINE)
    assert len(found) == SECONDS * RATE // WORKERS * WORKERS
    for number in range(WORKERS):
        lines = [int(line) for name, line in found if name == str(number)]
        assert lines == list(range(len(lines))), "in order"
    # 30% of a core while they write; starting them is not counted among it, and is the smaller part.
    assert used < 0.3 * SECONDS + WORKERS * 0.02, used
