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
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)
print('ready', flush=True)
wait_for(sys.argv[1])
started, written = time.monotonic(), 0
while written < {SECONDS * RATE // WORKERS}:
    due = min(int((time.monotonic() - started) * {RATE / WORKERS}) + 1, {SECONDS * RATE // WORKERS})
    for number in range(written, due):
        sys.stdout.write(f"line {{number}}, with some more text, to be as long as a line of a log\\n")
    sys.stdout.flush()
    written = due
    time.sleep(0.05)
print('written', flush=True)
wait_for(sys.argv[2])
"""


def seconds_of_cpu(launch: Launch) -> float:
    """Of all processes of bpslaunch itself; where there are agents, of theirs, too."""
    return sum(_seconds(pid) for pid, line in launch.processes().items() if "launch.py" in line)


def _seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("where", [("--workers", str(WORKERS)), ("--hosts", f"localhost:{WORKERS}")])
def test_many_lines_of_many_processes(
    start: Start, worker: Worker, tmp_path: pathlib.Path, where: tuple[str, str]
) -> None:
    # Of the time that the lines take by their rate: they take longer where the processes have to wait for cores. What
    # else runs on the cores makes the same work take more time of them, so it is looked at up to three times.
    least = SECONDS * 1.0
    for look in range(3):
        (tmp_path / str(look)).mkdir()
        least = min(least, _used(start, worker, tmp_path / str(look), where))
        print(f"{least / SECONDS:.0%} of a core")
        if least < 0.3 * SECONDS:
            break
    assert least < 0.3 * SECONDS, least


def _used(start: Start, worker: Worker, folder: pathlib.Path, where: tuple[str, str]) -> float:
    """Seconds of a core that bpslaunch takes for the lines, none of which is lost."""
    go, end = folder / "go", folder / "end"
    launch = start(*where, "--", *worker(NOISY), str(go), str(end))
    launch.wait_for("ready", WORKERS)
    before = seconds_of_cpu(launch)
    go.touch()
    launch.wait_for("written", WORKERS)
    used = seconds_of_cpu(launch) - before
    end.touch()
    assert launch.wait() == 0, launch.stderr
    found = re.findall(r"^\[worker (\d+)\] line (\d+),", launch.stdout, re.MULTILINE)
    assert len(found) == SECONDS * RATE // WORKERS * WORKERS
    for number in range(WORKERS):
        lines = [int(line) for name, line in found if name == str(number)]
        assert lines == list(range(len(lines))), "in order"
    return used


LINE = "a line of some forty bytes of output text\n"
BYTES = 16_000_000  # more than an agent keeps for bpslaunch, several times


def test_a_worker_that_ends_before_its_output_is_taken(start: Start) -> None:
    """Its agent reads no more output than bpslaunch takes; the end of a pipe comes while none is read."""
    write = f"yes '{LINE.strip()}' | head -c {BYTES}"
    launch = start("--hosts", "localhost", "--", "sh", "-c", write)
    assert launch.wait() == 0, launch.stderr
    written = launch.stdout.replace("[worker 0] ", "")
    assert len(written.rstrip("\n")) == len((LINE * (BYTES // len(LINE) + 1))[:BYTES].rstrip("\n"))
    assert launch.stdout.count(f"[worker 0] {LINE}") == BYTES // len(LINE)
