"""The process in front, where signals meet the end of its supervisor."""

from __future__ import annotations

import os
import signal

import pytest
from launching import Start, Worker

from launcher import guardian
from launcher.output import Printer


def test_a_signal_between_the_end_of_the_supervisor_and_the_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_and_be_signalled(pid: int, options: int) -> tuple[int, int]:
        ended = waitpid(pid, options)
        os.kill(os.getpid(), signal.SIGTERM)
        return ended

    waitpid = os.waitpid
    monkeypatch.setattr(guardian.os, "waitpid", wait_and_be_signalled)
    monkeypatch.setattr(guardian.process_tree, "become_subreaper", lambda: None)  # it would be for all other tests, too
    assert guardian.Guardian(lambda _lifeline: 143, lambda: 5, Printer("test")).run() == 143


def test_a_warning_reaches_the_workers(start: Start, worker: Worker) -> None:
    """A batch system warns by SIGUSR1 or SIGUSR2 of what is to come."""
    wait = (
        "import signal\nnumbers = (signal.SIGUSR1, signal.SIGUSR2)\nsignal.pthread_sigmask(signal.SIG_BLOCK, numbers)\n"
    )
    wait += "print('waits', flush=True)\nfor _ in numbers: print('got', signal.sigwait(numbers).name, flush=True)"
    job = start("--workers", "2", "--servers", "1", "--", *worker(wait))
    job.wait_for("waits", 2)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        job.process.send_signal(number)
        job.wait_for(f"got {number.name}", 2)
    assert job.wait() == 0 and job.stderr == "", job.stderr


def test_a_worker_that_expects_no_warning(start: Start, worker: Worker) -> None:
    job = start("--workers", "2", "--", *worker("print('waits', flush=True)\nimport time\ntime.sleep(1000)"))
    job.wait_for("waits", 2)
    job.process.send_signal(signal.SIGUSR2)
    assert job.wait(30) == 128 + signal.SIGUSR2
    assert "was killed by SIGUSR2" in job.stderr, job.stderr
