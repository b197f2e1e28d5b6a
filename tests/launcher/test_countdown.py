"""What the deadlines of the end of a job add up to, whoever ignores SIGTERM and however late the launcher wakes."""

from __future__ import annotations

import itertools

import pytest

from launcher.countdown import (
    KILL_SECONDS,
    LEAST_KILL_SECONDS,
    OWN_EXIT_SECONDS,
    SILENT_OWN_EXIT_SECONDS,
    Countdown,
)

START = 1000.0


def end_of(countdown: Countdown, own_exit: bool, stubborn: tuple[bool, bool, bool], late: tuple[float, ...]) -> float:
    """Seconds from the failure until everybody has been killed, if who is not stubborn ends at once on SIGTERM, and a
    phase is entered `late` after the one before has ended."""
    countdown.begin(START, OWN_EXIT_SECONDS if own_exit else 0.0)
    now = START
    if own_exit:
        now = max(now, countdown.own_exit(now))
    for phase, waits, lateness in zip((countdown.workers, countdown.coordinator, countdown.servers), stubborn, late):
        now += lateness
        if waits:
            now = max(now, phase(now))
    return now - START


@pytest.mark.parametrize("own_exit", [True, False])
def test_the_first_failure_ends_the_job_within_10_seconds(own_exit: bool) -> None:
    for stubborn in itertools.product((False, True), repeat=3):
        took = end_of(Countdown(5.0), own_exit, stubborn, (0.0, 0.0, 0.0))
        assert took <= (10 if own_exit else 8) - LEAST_KILL_SECONDS, stubborn


def test_being_late_in_one_phase_shortens_the_following() -> None:
    for late in itertools.product((0.0, 0.4, 0.9), repeat=3):
        assert end_of(Countdown(5.0), True, (True, True, True), late) <= 10 - LEAST_KILL_SECONDS + late[2], late


@pytest.mark.parametrize("noticed", [START + 4, START + 5, START + 6])
def test_a_silent_host_counts_from_its_last_sign_of_life(noticed: float) -> None:
    """Whoever ignores SIGTERM has been killed before 9 of the 10 seconds; the last one is for those who report it."""
    countdown = Countdown(5.0)
    countdown.begin(START, SILENT_OWN_EXIT_SECONDS)
    assert countdown.own_exit(noticed) <= noticed
    killed = countdown.workers(noticed)
    assert noticed + 1 <= killed == START + 7
    assert countdown.coordinator(killed) == START + 8
    assert countdown.servers(START + 8) <= START + 9


def test_what_sigkill_does_not_end_is_given_up() -> None:
    countdown = Countdown(5.0)
    countdown.begin(START, OWN_EXIT_SECONDS)
    assert countdown.killed(START + 7) == START + 7 + KILL_SECONDS
    assert countdown.killed(START + 9.5) == START + 10
    assert countdown.killed(START + 20) == START + 20 + LEAST_KILL_SECONDS


def test_more_patience_for_workers_is_given_to_them_alone() -> None:
    assert end_of(Countdown(600.0), True, (True, True, True), (0.0, 0.0, 0.0)) <= 605
    assert end_of(Countdown(0.0), True, (True, True, True), (0.0, 0.0, 0.0)) <= 2


def test_services_have_time_when_all_has_gone_well() -> None:
    countdown = Countdown(5.0)
    assert countdown.coordinator(START) == START + 10
    assert countdown.servers(START) == START + 10
