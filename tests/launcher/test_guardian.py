"""The process in front, where signals meet the end of its supervisor."""

from __future__ import annotations

import os
import signal

import pytest

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
    assert guardian.Guardian(lambda _lifeline: 143, 5, Printer("test")).run() == 143
