"""How a job ends: failures, signals, deaths, and that nothing stays behind. With real processes."""

from __future__ import annotations

import array
import fcntl
import functools
import os
import pathlib
import re
import select
import signal
import termios
import time

import pytest
from launching import Launch, Service, Start, Worker, wait_until

# A bound for what the launcher does in 10 seconds (test_countdown.py) on a machine that has many other things to do.
SOON = 60

# A worker that has started something in the background, in a session of its own, and never ends.
ENDLESS = """\
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""

# The same, and deaf to SIGTERM, in the background too.
STUBBORN = """\
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("ready", flush=True)
time.sleep(1000)
"""

# Worker 1 waits until worker 0 is ready, and then does something.
SECOND = """\
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["MARK"])
if os.environ["BYTEPS_LOCAL_RANK"] == "0":
    {first}
    mark.touch()
    {wait}
else:
    while not mark.exists():
        time.sleep(0.01)
    {act}
"""


def since(mark: pathlib.Path) -> float:
    """The seconds since a worker made this file."""
    return time.time() - mark.stat().st_mtime


def second(tmp_path: pathlib.Path, act: str, first: str = "pass", wait: str = "time.sleep(1000)") -> tuple[str, dict]:
    return SECOND.format(first=first, act=act, wait=wait), {"MARK": str(tmp_path / "mark")}


def children(pid: int) -> list[int]:
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def cpu_seconds(pid: int) -> float:
    """Of all its threads, user and system, to the nanosecond: what clock_getcpuclockid(3) makes of a process."""
    return time.clock_gettime((~pid << 3) | 2)


def sleeps(pid: int) -> int:
    """How often its threads went to sleep by their own will: each time they had been woken."""
    statuses = [task.read_text() for task in pathlib.Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1]) for status in statuses)


def test_the_first_failure_ends_the_job(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    source, variables = second(
        tmp_path, "print('before the end', file=sys.stderr); print('no newline', end='', file=sys.stderr); sys.exit(42)"
    )
    launch = start("--workers", "2", "--", *worker(source), variables=variables)
    assert launch.wait() == 42
    assert since(tmp_path / "mark") < SOON
    assert "worker 1 (pid " in launch.stderr and "exited with code 42" in launch.stderr
    told = launch.stderr[launch.stderr.index("last lines of worker 1") :]
    assert "  before the end\n" in told and "  no newline\n" in told
    assert launch.stderr.index("[worker 1] before the end\n") < launch.stderr.index("exited with code 42")
    assert "[worker 1] no newline\n" in launch.stderr
    assert "worker 0" not in launch.stderr


def test_death_by_signal(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    source, variables = second(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    launch = start("--workers", "2", "--", *worker(source), variables=variables)
    assert launch.wait() == 128 + signal.SIGSEGV
    assert "was killed by SIGSEGV" in launch.stderr
    assert "worker 1 wrote nothing" in launch.stderr


def test_a_worker_killed_from_outside(start: Start, worker: Worker) -> None:
    source = "import os, time\nprint('pid', os.getpid(), '.', flush=True)\ntime.sleep(1000)"
    launch = start("--workers", "2", "--", *worker(source))
    launch.wait_for("pid", 2)
    line = next(line for line in launch.stdout.splitlines() if line.startswith("[worker 1]"))
    os.kill(int(line.split()[3]), signal.SIGKILL)
    assert launch.wait() == 137
    assert "worker 1 (pid " in launch.stderr and "was killed by SIGKILL" in launch.stderr


def test_the_stubborn_are_killed_in_time(
    start: Start, worker: Worker, service: Service, tmp_path: pathlib.Path
) -> None:
    """Nobody ends on SIGTERM. What each phase may take is the launcher's own word: the clock of a loaded machine proves
    nothing."""
    deaf = "#!{python}\nimport signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n"
    source, variables = second(tmp_path, "sys.exit(7)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    variables["BYTEPS_SERVER_BINARY"] = service(deaf)
    launch = start(
        "--verbose", "--workers", "2", "--servers", "2", "--", *worker(source), variables=variables
    )  # fmt: skip
    assert launch.wait() == 7
    assert since(tmp_path / "mark") < SOON
    assert "still there after SIGTERM, killed: worker 0" in launch.stderr
    assert "still there after SIGTERM, killed: coordinator" in launch.stderr
    assert "still there after SIGTERM, killed: server 0" in launch.stderr
    promised = [float(seconds) for seconds in re.findall(r": until ([\d.]+) s after the failure", launch.stderr)]
    assert len(promised) == 4 and promised == sorted(promised), launch.stderr
    assert promised[-1] <= 10
    assert not launch.processes()


def test_a_worker_may_end_well_before_the_others(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    source, variables = second(tmp_path, "print('the last one')", wait="pass")
    launch = start("--workers", "2", "--", *worker(source), variables=variables)
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout.count("the last one") == 1
    assert launch.stderr == ""


@pytest.mark.parametrize("role, name", [("scheduler", "coordinator"), ("server", "server 0")])
@pytest.mark.parametrize("status, code", [(0, 1), (9, 9)])
def test_a_service_that_ends_early_is_a_failure(
    start: Start, worker: Worker, service: Service, role: str, name: str, status: int, code: int
) -> None:
    source = f"""\
#!{{python}}
import os, signal, sys
if os.environ["DMLC_ROLE"] == "{role}":
    print("last words", flush=True)
    sys.exit({status})
signal.sigwait([signal.SIGTERM])
"""
    launch = start(
        "--workers", "2", "--servers", "1", "--", *worker("import time\ntime.sleep(1000)"),
        variables={"BYTEPS_SERVER_BINARY": service(source)},
    )  # fmt: skip
    assert launch.wait() == code
    assert f"bpslaunch: {name} (pid " in launch.stderr
    assert f"exited with code {status} after" in launch.stderr and "while workers were running" in launch.stderr
    assert "  last words\n" in launch.stderr


def test_a_service_that_crashes_at_the_end_is_a_failure(
    start: Start, worker: Worker, service: Service, tmp_path: pathlib.Path
) -> None:
    source = """\
#!{python}
import os, pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
pathlib.Path(os.environ["MARK"] + os.environ["DMLC_ROLE"]).touch()
signal.sigwait([signal.SIGTERM])
os.abort()
"""
    wait = """\
import os, pathlib, time
while not all(pathlib.Path(os.environ["MARK"] + role).exists() for role in ("server", "scheduler")):
    time.sleep(0.01)
"""
    variables = {"BYTEPS_SERVER_BINARY": service(source), "MARK": str(tmp_path / "mark-")}
    launch = start("--workers", "2", "--servers", "1", "--", *worker(wait), variables=variables)
    assert launch.wait() == 128 + signal.SIGABRT
    assert "was killed by SIGABRT" in launch.stderr and "at the end of the job" in launch.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_nothing(start: Start, worker: Worker, number: signal.Signals) -> None:
    launch = start("--workers", "2", "--servers", "2", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)
    # (A process that has just begun has no environment yet by which it could be found.)
    wait_until(lambda: len(launch.processes()) >= 2 + 1 + 2 + 4, lambda: f"not all there: {launch.processes()}")
    launch.process.send_signal(number)
    began = time.monotonic()
    assert launch.wait() == 128 + number
    assert time.monotonic() - began < SOON
    assert not launch.processes()
    assert launch.stderr == f"bpslaunch: {number.name}: ending the job\n"


def test_a_signal_ends_the_stubborn(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--", *worker(STUBBORN))
    launch.wait_for("ready", 2)
    launch.process.terminate()
    began = time.monotonic()
    assert launch.wait() == 143
    assert time.monotonic() - began < SOON
    assert not launch.processes()


def test_a_second_signal_kills_at_once(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--kill-after", "600", "--", *worker(STUBBORN))
    launch.wait_for("ready", 2)
    launch.process.send_signal(signal.SIGINT)
    wait_until(lambda: "ending the job" in launch.stderr, lambda: "the first signal was not heard")
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait() == 130
    assert "killing what is left" in launch.stderr


def test_a_batch_system_signals_all_of_us(start: Start, worker: Worker) -> None:
    """Each of bpslaunch's processes gets SIGTERM, and passes it on: the workers have their time all the same."""
    source = """\
import signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("ready", flush=True)
while not told:
    time.sleep(0.01)
print("told", flush=True)
time.sleep(0.5)  # saves the model
print("saved")
"""
    launch = start("--workers", "2", "--", *worker(source))
    launch.wait_for("ready", 2)
    launch.process.terminate()
    launch.wait_for("told", 2)
    launch.process.terminate()
    assert launch.wait() == 143
    assert launch.stdout.count("saved") == 2, launch.stderr
    assert "killing" not in launch.stderr


def test_ctrl_c_at_a_terminal(start: Start, worker: Worker) -> None:
    """The terminal signals a whole process group: workers must not see it, and one message is enough."""
    source = """\
import time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted")
"""
    launch = start("--workers", "2", "--", *worker(source), start_new_session=True)
    launch.wait_for("ready", 2)
    os.killpg(launch.process.pid, signal.SIGINT)
    assert launch.wait() == 130
    assert "interrupted" not in launch.stdout
    assert launch.stderr.count("SIGINT") == 1


def test_an_ignored_signal_stays_ignored(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    """nohup bpslaunch ... survives the end of its terminal."""
    go = tmp_path / "go"
    source = f"""\
import pathlib, time
print("ready", flush=True)
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.01)
print("still here")
"""
    ignore = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    launch = start("--workers", "2", "--", *worker(source), preexec_fn=ignore)
    launch.wait_for("ready", 2)
    launch.process.send_signal(signal.SIGHUP)
    go.touch()
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout.count("still here") == 2


def test_the_launcher_killed(start: Start, worker: Worker) -> None:
    """SIGKILL of the process that the user started: the supervisor notices and ends everything."""
    launch = start("--workers", "2", "--servers", "1", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)
    launch.process.kill()
    assert launch.wait() == -signal.SIGKILL
    launch.wait_gone()


def keeper_and_supervisor(launch: Launch) -> tuple[int, int]:
    lines = launch.processes()  # The guardian has another child, which removes the job's folder.
    (keeper,) = (pid for pid in children(launch.process.pid) if "launch.py" in lines[pid])
    (supervisor,) = children(keeper)
    return keeper, supervisor


@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_half_of_the_launcher_killed(start: Start, worker: Worker, victim: str) -> None:
    """SIGKILL of the supervisor, or of its keeper: those above sweep up, what escaped into other sessions included."""
    launch = start("--workers", "2", "--servers", "1", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)
    keeper, supervisor = keeper_and_supervisor(launch)
    os.kill(keeper if victim == "keeper" else supervisor, signal.SIGKILL)
    assert launch.wait() == 137
    assert not launch.processes()
    assert "everything it had started was ended" in launch.stderr


def test_launcher_and_supervisor_killed(start: Start, worker: Worker) -> None:
    """The keeper is left: it ends what escaped into other sessions, and removes the folder with the token."""
    launch = start("--workers", "2", "--servers", "1", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)
    _, supervisor = keeper_and_supervisor(launch)
    launch.process.send_signal(signal.SIGSTOP)  # So that it cannot clean up.
    os.kill(supervisor, signal.SIGKILL)
    launch.process.kill()
    launch.wait()
    launch.wait_gone()


def test_the_whole_launcher_killed(start: Start, worker: Worker) -> None:
    """The kernel kills workers and servers; what removes the job's folder, what the workers have started."""
    launch = start("--workers", "2", "--servers", "1", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)
    keeper, supervisor = keeper_and_supervisor(launch)
    for pid in (launch.process.pid, keeper):
        os.kill(pid, signal.SIGSTOP)  # So that they cannot clean up.
    for pid in (supervisor, keeper, launch.process.pid):
        os.kill(pid, signal.SIGKILL)
    launch.wait()
    launch.wait_gone()


def test_what_a_worker_leaves_in_the_background_goes_with_the_job(start: Start, worker: Worker) -> None:
    brief = ENDLESS.rpartition("time.sleep(1000)")[0]
    launch = start("--workers", "2", "--", *worker(brief))
    assert launch.wait() == 0, launch.stderr
    assert not launch.processes()


def test_a_reader_that_goes_away_ends_the_job(start: Start, worker: Worker) -> None:
    read, write = os.pipe()
    launch = start("--workers", "2", "--", *worker("while True: print('y' * 1000)"), stdout=write)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    assert launch.wait() == 141
    assert "our output cannot be written: Broken pipe" in launch.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_reader_that_does_not_read_keeps_nobody_waiting(start: Start, worker: Worker, number: signal.Signals) -> None:
    """As under a pager, or on a terminal that was stopped with Ctrl-S."""
    read, write = os.pipe()
    launch = start("--workers", "2", "--", *worker("while True: print('y' * 1000)"), stdout=write)
    os.close(write)
    capacity = fcntl.fcntl(read, 1032)  # F_GETPIPE_SZ; named from Python 3.10 on
    pending = array.array("i", [0])

    def full() -> bool:
        fcntl.ioctl(read, termios.FIONREAD, pending)
        return pending[0] > capacity - 2 * select.PIPE_BUF

    wait_until(full, lambda: "the pipe does not fill")
    began = time.monotonic()
    launch.process.send_signal(number)
    assert launch.wait() == (130 if number == signal.SIGINT else -number)
    launch.wait_gone()
    assert time.monotonic() - began < SOON
    os.close(read)


def test_output_that_cannot_be_kept(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    (tmp_path / "worker0.stdout").symlink_to("/dev/full")
    launch = start("--output-dir", str(tmp_path), "--", *worker("import time\nprint('said')\ntime.sleep(1000)"))
    assert launch.wait() == 1
    assert "the output of worker 0 cannot be kept in its file: No space left on device" in launch.stderr
    assert launch.stdout == "[worker 0] said\n"


def test_lines_stay_whole_and_complete(start: Start, worker: Worker) -> None:
    """Many lines written in pieces by several workers at once: none torn, none lost, none swapped."""
    source = """\
import os, sys
rank = os.environ["BYTEPS_LOCAL_RANK"]
data = "".join(f"rank {rank} line {i} " + "x" * (i % 300) + "\\n" for i in range(20000)).encode()
for start in range(0, len(data), 777):
    os.write(1, data[start:start + 777])
os.write(1, b"the end without newline")
"""
    launch = start("--workers", "3", "--", *worker(source))
    assert launch.wait() == 0, launch.stderr
    by_rank: dict[str, list[str]] = {}
    for line in launch.stdout.splitlines():
        prefix, _, text = line.partition("] ")
        by_rank.setdefault(prefix, []).append(text)
    for rank in range(3):
        expected = [f"rank {rank} line {i} " + "x" * (i % 300) for i in range(20000)] + ["the end without newline"]
        assert by_rank[f"[worker {rank}"] == expected


def test_output_files(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    source = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.write('rest')"
    launch = start(
        "--workers", "2", "--servers", "1", "--output-dir", str(tmp_path / "logs" / "today"), "--", *worker(source)
    )
    assert launch.wait() == 0, launch.stderr
    for rank in range(2):
        assert (tmp_path / "logs" / "today" / f"worker{rank}.stdout").read_text() == "out\nrest"
        assert (tmp_path / "logs" / "today" / f"worker{rank}.stderr").read_text() == "err\n"
    assert (tmp_path / "logs" / "today" / "server0.stdout").exists()


def test_an_idle_launcher_uses_no_cpu(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--", *worker(ENDLESS))
    launch.wait_for("ready", 2)

    busy = set(descendants(launch.process.pid)) | {launch.process.pid}
    seen = []
    # A noisy machine adds to what they use: the best of a few windows counts, of each process its own.
    for _ in range(6):
        before = {pid: (cpu_seconds(pid), sleeps(pid)) for pid in busy}
        begin = time.monotonic()
        time.sleep(2)  # The time over which it is measured.
        passed = time.monotonic() - begin
        used = {
            pid: ((cpu_seconds(pid) - cpu) / passed, (sleeps(pid) - count) / passed)
            for pid, (cpu, count) in before.items()
        }
        seen.append(used)
        # A wake-up costs so little that many would pass for idle by their time alone.
        busy -= {pid for pid, (share, wakes) in used.items() if share < 0.01 and wakes < 20}
        if not busy:
            break
    assert not busy, seen
    launch.process.terminate()
    assert launch.wait() == 143


def test_a_signal_is_heard_while_workers_are_started(start: Start) -> None:
    count = 1000
    launch = start("--verbose", "--workers", str(count), "--", "sleep", "1000")
    wait_until(lambda: "coordinator: pid" in launch.stderr, lambda: launch.stderr)
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait() == 128 + signal.SIGTERM
    assert len(re.findall(r"worker \d+: pid", launch.stderr)) < count
