"""Which of several deaths is the cause: in whatever order they are seen."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal

import pytest
from launching import Service, Start, Worker, wait_until

from launcher import process_tree
from launcher.cause import Cause, Verdict
from launcher.child import Role

COORDINATOR, SERVER, WORKER = Role.COORDINATOR, Role.SERVER, Role.WORKER


class FakeSpec:
    def __init__(self, role: Role) -> None:
        self.role = role


class FakeChild:
    """What a verdict looks at."""

    def __init__(self, role: Role, status: int) -> None:
        self.spec = FakeSpec(role)
        self.status = status
        self.raised_at: float | None = None
        self.tells_of_a_loss = False


# The deaths of one job, the cause first.
DEATHS = [
    [(COORDINATOR, -signal.SIGKILL), (SERVER, 1), (WORKER, 1), (WORKER, 3)],
    [(SERVER, -signal.SIGSEGV), (WORKER, 1), (WORKER, 1)],
    [(WORKER, -signal.SIGKILL), (WORKER, 1), (WORKER, 1)],
    [(COORDINATOR, -signal.SIGKILL), (SERVER, -signal.SIGABRT), (WORKER, -signal.SIGABRT)],
    [(WORKER, -signal.SIGKILL), (SERVER, 1), (WORKER, 1)],
    [(COORDINATOR, 9), (SERVER, 1), (WORKER, 3)],
    [(COORDINATOR, 0), (SERVER, 0), (WORKER, 3)],
    [(SERVER, 9), (WORKER, 3)],
]


@pytest.mark.parametrize("deaths", DEATHS)
def test_any_order(deaths: list[tuple[Role, int]]) -> None:
    children = [FakeChild(role, status) for role, status in deaths]
    for order in itertools.permutations(children):
        verdict = Verdict()
        for child in order:
            verdict.weigh(Cause(1, "", child), may_come_first=True)
        assert verdict.cause is not None and verdict.cause.child is children[0]


def test_an_abort_of_a_worker_may_be_an_uncaught_error() -> None:
    for first, second in ((-signal.SIGABRT, 42), (42, -signal.SIGABRT)):
        verdict = Verdict()
        verdict.weigh(Cause(1, "first", FakeChild(WORKER, first)))
        assert not verdict.weigh(Cause(1, "second", FakeChild(WORKER, second)), may_come_first=True)


def test_the_first_of_equals_stays() -> None:
    verdict = Verdict()
    first = Cause(3, "first", FakeChild(WORKER, 3))
    assert verdict.weigh(first)
    assert not verdict.weigh(Cause(4, "second", FakeChild(WORKER, 4)), may_come_first=True)
    assert verdict.cause is first


def test_what_came_later_is_no_cause() -> None:
    verdict = Verdict()
    first = Cause(3, "first", FakeChild(WORKER, 3))
    verdict.weigh(first)
    assert not verdict.weigh(Cause(134, "an abort", FakeChild(WORKER, -signal.SIGABRT)), may_come_first=False)
    assert verdict.cause is first


def test_a_signal_to_the_launcher_stays_the_cause() -> None:
    verdict = Verdict()
    asked = Cause(130, "SIGINT", asked_for=True)
    verdict.weigh(asked)
    assert not verdict.weigh(Cause(137, "", FakeChild(COORDINATOR, -signal.SIGKILL)), may_come_first=True)
    assert verdict.cause is asked


def test_exiting() -> None:
    assert not process_tree.exiting(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        wait_until(lambda: process_tree.exiting(child), lambda: "the end of a process is not seen")
    finally:
        os.waitpid(child, 0)
    assert not process_tree.exiting(child)


# ---- Real processes: a worker that knows of a death before bpslaunch does ----

# Worker 1 gives up; worker 0 stays, deaf to SIGTERM, until the service that its death is blamed on is gone.
DEAF = """\
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["MARK"])
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    while not mark.exists():
        time.sleep(0.01)
    pathlib.Path(os.environ["MARK"] + "-gone").write_text(str(os.getpid()))
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark.touch()
while not pathlib.Path(os.environ["MARK"] + "-dying").exists():
    time.sleep(0.01)
pid = int(pathlib.Path(os.environ["MARK"] + "-dying").read_text())
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
"""

# Ends after worker 1 has: what bpslaunch sees when the kernel takes its time over the end of a killed process.
LATE = """\
#!{python}
import os, pathlib, signal, sys, time
if os.environ["DMLC_ROLE"] == "%s":
    gone = pathlib.Path(os.environ["MARK"] + "-gone")
    while not (gone.exists() and gone.read_text() and not os.path.exists("/proc/" + gone.read_text())):
        time.sleep(0.01)
    half = pathlib.Path(os.environ["MARK"] + "-half")
    half.write_text(str(os.getpid()))
    half.rename(os.environ["MARK"] + "-dying")
    %s
signal.sigwait([signal.SIGTERM])
"""


@pytest.mark.parametrize("role, name", [("scheduler", "coordinator"), ("server", "server 0")])
@pytest.mark.parametrize(
    "act, code, ending",
    [("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"), ("sys.exit(9)", 9, "exited with code 9")],
)
def test_a_service_whose_death_is_seen_after_that_of_a_worker(
    start: Start, worker: Worker, service: Service, tmp_path: pathlib.Path,
    role: str, name: str, act: str, code: int, ending: str,
) -> None:  # fmt: skip
    variables = {"BYTEPS_SERVER_BINARY": service(LATE % (role, act)), "MARK": str(tmp_path / "mark")}
    launch = start("--workers", "2", "--servers", "1", "--kill-after", "600", "--", *worker(DEAF), variables=variables)
    assert launch.wait() == code
    assert launch.stderr.index("worker 1 (pid ") < launch.stderr.index(f"bpslaunch: {name} (pid ")
    assert ending in launch.stderr and "the likely cause" in launch.stderr
    assert launch.stderr.splitlines()[-1].startswith(f"bpslaunch: {name} {ending}")


# Worker 1 forks, and is killed; worker 0, deaf to SIGTERM, ends well once the child of worker 1 is gone.
FORKS = """\
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["MARK"])
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    while not mark.exists():
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    half = pathlib.Path(os.environ["MARK"] + "-half")
    half.write_text(str(child))
    half.rename(os.environ["MARK"] + "-forked")
    %s
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark.touch()
while not pathlib.Path(os.environ["MARK"] + "-forked").exists():
    time.sleep(0.01)
while os.path.exists("/proc/" + pathlib.Path(os.environ["MARK"] + "-forked").read_text()):
    time.sleep(0.01)
print("nobody holds its sockets")
"""


@pytest.mark.parametrize("act, code", [("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os._exit(5)", 5)])
def test_what_a_failed_worker_has_forked_is_killed_at_once(
    start: Start, worker: Worker, tmp_path: pathlib.Path, act: str, code: int
) -> None:
    """Its children hold its connections: while they live, no other worker can hear of its death."""
    variables = {"MARK": str(tmp_path / "mark")}
    launch = start("--workers", "2", "--kill-after", "600", "--", *worker(FORKS % act), variables=variables)
    assert launch.wait() == code
    assert "[worker 0] nobody holds its sockets" in launch.stdout


# Worker 1 fails; worker 0 then aborts, as an exception that nobody catches does, when worker 1 is gone.
ABORTS = """\
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["MARK"])
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    mark.write_text(str(os.getpid()))
    sys.exit(42)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
while not (mark.exists() and mark.read_text() and not os.path.exists("/proc/" + mark.read_text())):
    time.sleep(0.01)
os.abort()
"""


def test_a_worker_that_aborts_because_of_the_first_failure(
    start: Start, worker: Worker, tmp_path: pathlib.Path
) -> None:
    launch = start("--workers", "2", "--", *worker(ABORTS), variables={"MARK": str(tmp_path / "mark")})
    assert launch.wait() == 42
    assert "likely cause" not in launch.stderr


# Worker 1 raises, and takes its time to end; worker 0 hears of it and ends at once.
RAISES = """\
import atexit, os, pathlib, sys, time
mark = pathlib.Path(os.environ["MARK"])
class UnavailableError(Exception):
    __module__ = "byteps.errors"
def leave():
    mark.touch()
    while not pathlib.Path(os.environ["MARK"] + "-end").exists():
        time.sleep(0.01)
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    atexit.register(leave)
    raise ValueError("the data set is broken")
while not mark.exists():
    time.sleep(0.01)
if os.environ["NOISY"] == "1":
    raise UnavailableError("worker rank 1 has left the session")
pathlib.Path(os.environ["MARK"] + "-end").touch()
raise RuntimeError("worker 1 is gone")
"""


@pytest.mark.parametrize("noisy", ["0", "1"])
def test_the_first_to_raise_is_the_cause(start: Start, worker: Worker, tmp_path: pathlib.Path, noisy: str) -> None:
    variables = {"MARK": str(tmp_path / "mark"), "NOISY": noisy}
    launch = start("--workers", "2", "--", *worker(RAISES), variables=variables)
    if noisy == "1":  # Worker 0 has ended when worker 1 does.
        wait_until(lambda: "worker 0 (pid " in launch.stderr, lambda: launch.stderr)
        pathlib.Path(variables["MARK"] + "-end").touch()
    assert launch.wait() == 1
    assert "ValueError: the data set is broken" in launch.stderr.partition("last lines of worker 1:")[2]
    assert launch.stderr.splitlines()[-1] == "bpslaunch: worker 1 exited with code 1: exit code 1"


# Worker 1 has left the session, and takes its time to end; worker 0 hears of it and ends at once.
LEAVES = """\
import atexit, os, pathlib, sys, time
mark = pathlib.Path(os.environ["MARK"])
def leave():
    mark.touch()
    while not pathlib.Path(os.environ["MARK"] + "-end").exists():
        time.sleep(0.01)
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    atexit.register(leave)
    sys.exit(3)
while not mark.exists():
    time.sleep(0.01)
print("Traceback (most recent call last):", os.environ["LAST_LINE"], sep="\\n", file=sys.stderr)
os._exit(1)
"""

_LEFT = 'worker rank 1 (host "a", pid 7) has left the session before the others: it has called shutdown'
_GONE = 'worker rank 1 (host "a", pid 7) is gone without a goodbye: the other side has closed the connection'


@pytest.mark.parametrize(
    "last_line, code",
    [
        (f"byteps.errors.UnavailableError: {_LEFT}", 3),
        (f"tensorflow.python.framework.errors_impl.UnavailableError: {{{{function_node f}}}} {_LEFT}", 3),
        (f"jax.errors.JaxRuntimeError: UNAVAILABLE: {_LEFT}", 3),
        (f"jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: {_LEFT}", 3),
        (f"mxnet.base.MXNetError: MXNetError: {_LEFT}", 3),
        (f"mxnet.base.MXNetError: MXNetError: {_GONE}", 3),
        ("mxnet.base.MXNetError: MXNetError: server rank 0 is gone: it is broken", 3),
        ("mxnet.base.MXNetError: MXNetError: the ranks disagree: rank 0 ...", 1),
        ("jax.errors.JaxRuntimeError: INTERNAL: no memory", 1),
        (f"RuntimeError: {_LEFT}", 1),
    ],
)
def test_an_error_of_a_framework_that_tells_of_a_loss_is_no_cause(
    start: Start, worker: Worker, tmp_path: pathlib.Path, last_line: str, code: int
) -> None:
    variables = {"MARK": str(tmp_path / "mark"), "LAST_LINE": last_line}
    launch = start("--workers", "2", "--kill-after", "600", "--", *worker(LEAVES), variables=variables)
    wait_until(lambda: "worker 0 (pid " in launch.stderr, lambda: launch.stderr)
    pathlib.Path(variables["MARK"] + "-end").touch()
    assert launch.wait() == code, launch.stderr
    assert launch.stderr.splitlines()[-1].startswith(f"bpslaunch: worker {int(code == 3)} exited with code {code}")


# The servers of a job end by themselves when its coordinator says that the job is over.
HEARS_IT = """\
#!{python}
import os, pathlib, signal, sys, time
over = pathlib.Path(os.environ["MARK"] + "-over")
if os.environ["DMLC_ROLE"] == "scheduler":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pathlib.Path(os.environ["MARK"]).touch()
    signal.sigwait([signal.SIGTERM])
    over.write_text("")
    while not (over.read_text() and not os.path.exists("/proc/" + over.read_text())):
        time.sleep(0.01)
else:
    while not over.exists():
        time.sleep(0.01)
    half = pathlib.Path(os.environ["MARK"] + "-half")
    half.write_text(str(os.getpid()))
    half.rename(over)
"""


def test_a_server_that_ends_with_the_job_is_no_cause(
    start: Start, worker: Worker, service: Service, tmp_path: pathlib.Path
) -> None:
    fails = """\
import os, pathlib, sys, time
while not pathlib.Path(os.environ["MARK"]).exists():
    time.sleep(0.01)
sys.exit(7)
"""
    variables = {"BYTEPS_SERVER_BINARY": service(HEARS_IT), "MARK": str(tmp_path / "mark")}
    launch = start("--workers", "1", "--servers", "1", "--kill-after", "600", "--", *worker(fails), variables=variables)
    assert launch.wait() == 7, launch.stderr
    assert "likely cause" not in launch.stderr
