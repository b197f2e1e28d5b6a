"""The process beside a worker: what it does when the worker ends."""

from __future__ import annotations

import pathlib
import signal
import sys

from launching import Service, Spawn

CHECKOUT = str(pathlib.Path(__file__).resolve().parents[2])

# Has a coordinator beside it, and ends.
WORKER = f"""
import os, sys
sys.path.insert(0, {CHECKOUT!r})
os.environ["WORKER"] = str(os.getpid())
from launcher.environment import Environment
from launcher.environments.companion import Companion
Companion(Environment(os.environ)).start("127.0.0.1", [], {{}}, "1")
"""

# A coordinator that starts slowly: it has not set up what it does at signals.
COORDINATOR = """#!{python}
import os, signal, time
while os.path.exists(f"/proc/{os.environ['WORKER']}"):
    time.sleep(0.01)
waits = signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
found = signal.sigtimedwait((signal.SIGUSR1,), 100) if waits else None
with open("heard", "w") as file:
    file.write(str(found and found.si_signo))
"""


def test_the_end_of_a_worker_waits_for_the_coordinators_start(
    spawn: Spawn, service: Service, tmp_path: pathlib.Path
) -> None:
    job = spawn(sys.executable, "-c", WORKER, variables={"BYTEPS_SERVER_BINARY": service(COORDINATOR)})
    assert job.wait() == 0, job.stderr
    job.wait_gone()
    assert (tmp_path / "heard").read_text() == str(int(signal.SIGUSR1)), job.stderr
