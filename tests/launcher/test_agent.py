"""The agent of a host, without one: what bpslaunch hears of it while it is busy."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator

import pytest

from launcher.failure import LaunchError
from launcher.remote import frame
from launcher.remote.agent import Agent


@pytest.fixture
def pipes() -> Iterator[list[int]]:
    """Source and sink of an agent: read end, write end, of each."""
    descriptors = [*os.pipe(), *os.pipe()]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_signs_of_life_while_it_waits(pipes: list[int]) -> None:
    agent = Agent(pipes[0], pipes[3], -1)
    heard = threading.Event()

    def bpslaunch() -> None:
        decoder = frame.Decoder(greeted=True)
        beats = 0
        while beats < 2 and select.select([pipes[2]], [], [], 60)[0]:
            beats += sum(
                isinstance(each, dict) and each["event"] == "beat" for each in decoder.feed(os.read(pipes[2], 1000))
            )
        if beats == 2:
            heard.set()

    listener = threading.Thread(target=bpslaunch)
    listener.start()
    assert agent._aside(lambda: heard.wait(60)), "no sign of life"
    listener.join()


def test_the_error_of_what_it_waits_for(pipes: list[int]) -> None:
    def fail() -> None:
        raise LaunchError("no such name", 7)

    with pytest.raises(LaunchError, match="no such name"):
        Agent(pipes[0], pipes[3], -1)._aside(fail)


def test_its_own_work_is_not_the_silence_of_bpslaunch(pipes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(pipes[0], pipes[3], -1)
    ends: list[float] = []

    def work(_request: dict[str, object]) -> None:
        begun = time.monotonic()
        while time.monotonic() == begun:
            pass
        ends.append(time.monotonic())

    monkeypatch.setattr(agent, "_do", work)
    os.write(pipes[1], frame.message(do="probe"))
    agent._hear()
    assert agent._heard >= ends[0]
