"""`bpslaunch --check --hosts ...`: all hosts side by side, in one table; what is wrong follows, by host.

Nothing of the job is started. Each agent says what is installed, and opens a port; then every host tries the ports of
all others, and with --check=network sends to its neighbour for a second.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from .. import process_tree
from ..arguments import Arguments
from ..descriptor_limit import raise_limit
from ..failure import LaunchError
from ..finding import Level
from ..guardian import SIGNALS
from ..installation import installed_release
from ..output import Printer
from . import frame
from .layout import HostLayout, HostPart
from .link import Link
from .meeting_point import coordinator_point
from .redial import Redial
from .same_host import twice_named

_GREETING_SECONDS = 30.0
_ANSWER_SECONDS = 60.0
_CLOCKS_APART = 60.0
_HEADINGS = (
    *("host", "answered", "release", "python", "clock", "cores", "address", "interface", "port"),
    *("locked memory", "reaches", "slowest"),
)


class HostCheck:
    """One check over the hosts of a layout."""

    def __init__(
        self,
        arguments: Arguments,
        layout: HostLayout,
        commands: Sequence[list[str]],
        words: Sequence[str],
        variables: dict[str, str],
        folders: Sequence[str],
        lifeline: int,
        printer: Printer,
    ) -> None:
        """`folders`: names of that in which the processes would run; the others as for HostSupervisor."""
        self._arguments = arguments
        self._layout = layout
        self._commands = commands
        self._words = words
        self._variables = variables
        self._folders = folders
        self._printer = printer
        self._selector = selectors.DefaultSelector()
        self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._stop(signal.SIGKILL))
        self._links: list[Link] = []
        self._greeted: dict[str, float] = {}  # seconds until the agent answered
        self._clocks: dict[str, float] = {}
        self._checked: dict[str, dict[str, Any]] = {}
        self._probed: dict[str, dict[str, Any]] = {}
        self._addresses: dict[str, str] = {}  # by which the others reach each host
        self._problems: dict[str, list[str]] = {}
        self._next_beat = 0.0
        self._redial = Redial()

    def run(self) -> int:
        """Prints the table; 1 if a job would fail, else 0."""
        process_tree.become_subreaper()
        raise_limit()
        for number in SIGNALS:
            signal.signal(number, lambda number, _frame: self._stop(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            self._connect()
            there = self._locate([link for link in self._links if link.hello is not None])
            self._check(there)
            self._probe([link for link in there if self._checked.get(link.machine, {}).get("port")])
        finally:
            for link in self._links:
                link.say_over()
            self._wait(lambda: not any(link.alive for link in self._links), 2.0)
            process_tree.end_descendants(time.monotonic() + 2.0)
        self._print()
        return 1 if self._problems else 0

    # ---- The three rounds ----

    def _connect(self) -> None:
        now = time.monotonic()
        self._links += [self._call(part, command, now) for part, command in zip(self._layout.parts, self._commands)]
        self._wait(self._all_have_answered, _GREETING_SECONDS)
        for link in self._links:
            if link.hello is None:
                text = link.ending() if not link.alive else f"no answer within {_GREETING_SECONDS:g} s"
                said = [line.decode(errors="replace") for line in list(link.tail)[-1:]]
                self._problem(link, ": ".join([text, *said]))
                continue
            release = link.hello.get("release")
            if release != installed_release():
                self._problem(link, f"release {release}, we are {installed_release()}: install one release everywhere")
            apart = self._clocks[link.machine]
            if abs(apart) > _CLOCKS_APART:
                self._problem(link, f"its clock is {apart:+.0f} s from ours: set it (NTP), logs will not fit together")
        for _, link, text in twice_named(self._links):
            self._problem(link, text)

    def _call(self, part: HostPart, command: list[str], now: float) -> Link:
        link = Link(part, command, now, self._selector, self._event)
        link.greet(self._folders, self._variables.get("DMLC_INTERFACE"), self._arguments.kill_after)
        return link

    def _all_have_answered(self) -> bool:
        now = time.monotonic()
        for old in self._redial.due(now):
            self._links[self._links.index(old)] = self._call(old.part, old.spec.command, now)
        return not self._redial.waiting and all(link.hello is not None or not link.alive for link in self._links)

    def _locate(self, links: Sequence[Link]) -> list[Link]:
        """Finds the addresses by which hosts reach each other; the hosts that have one."""
        found = []
        interface = self._variables.get("DMLC_INTERFACE")
        for link in links:
            try:
                named = self._arguments.remote.scheduler_ip if link.part.coordinator else None
                point = coordinator_point(link, links, interface, named)
                self._addresses[link.machine] = point
                found.append(link)
            except LaunchError as error:
                self._problem(link, str(error).partition(": ")[2])
        return found

    def _address(self, link: Link) -> str:
        return self._addresses[link.machine]

    def _check(self, links: Sequence[Link]) -> None:
        for link in links:
            others = [other for other in links if other is not link] or [link]
            home = link.part.coordinator
            link.send(
                do="check",
                variables=self._variables,
                workers=link.part.workers,
                servers=len(link.part.servers),
                services=home or bool(link.part.servers),
                command=list(self._words),
                address=self._address(link),
                toward=self._address(others[0]),
                port=(self._arguments.port or 0) if home else 0,
            )
        self._wait(lambda: all(link.machine in self._checked or not link.alive for link in links), _ANSWER_SECONDS)
        self._name_the_silent(links, self._checked, "check")
        for link in links:
            for level, subject, text in self._findings(link):
                if level == Level.FAIL.value:
                    self._problem(link, f"{subject}: {text}")

    def _probe(self, links: Sequence[Link]) -> None:
        if len(links) < 2:
            return
        for index, link in enumerate(links):
            others = [other for other in links if other is not link]
            targets = [(self._address(other), self._checked[other.machine]["port"]) for other in others]
            neighbour = links[(index + 1) % len(links)]
            measure = (self._address(neighbour), self._checked[neighbour.machine]["port"])
            link.send(do="probe", targets=targets, measure=measure if self._arguments.measure else None)
            if self._arguments.measure:  # One at a time, or they share what is measured.
                self._wait(partial(self._has_probed, link), _ANSWER_SECONDS)
        self._wait(lambda: all(map(self._has_probed, links)), _ANSWER_SECONDS)
        self._name_the_silent(links, self._probed, "probe of the other hosts")
        for link in links:
            others = [other for other in links if other is not link]
            results = self._probed.get(link.machine, {}).get("results", [])
            for other, (_, error) in zip(others, results):
                if error is not None:
                    self._problem(
                        link, f"cannot reach {other.machine} ({self._address(other)}): {error}: open the firewall"
                    )

    def _name_the_silent(self, links: Sequence[Link], answers: dict[str, dict[str, Any]], asked: str) -> None:
        """A host that was there and does not answer any more is not ok."""
        for link in links:
            if link.machine not in answers:
                how = link.ending() if not link.alive else f"no answer within {_ANSWER_SECONDS:g} s"
                said = [line.decode(errors="replace") for line in list(link.tail)[-1:]]
                self._problem(link, ": ".join([f"the {asked}: {how}", *said]))

    # ---- Events ----

    def _event(self, link: Link, event: dict[str, Any] | tuple[int, int, bytes]) -> None:
        if isinstance(event, tuple):
            return
        kind = event.get("event")
        if kind == "hello":
            link.hello = event
            self._greeted[link.machine] = time.monotonic() - link.started
            self._clocks[link.machine] = float(event.get("time", 0.0)) - time.time()
        elif kind == "checked":
            self._checked[link.machine] = event
        elif kind == "probed":
            self._probed[link.machine] = event
        elif kind == "refused":
            self._problem(link, str(event.get("text")))

    def _has_probed(self, link: Link) -> bool:
        return link.machine in self._probed or not link.alive

    def _wait(self, until: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            now = time.monotonic()
            if now >= self._next_beat:
                self._next_beat = now + frame.BEAT_SECONDS
                for link in self._links:
                    link.send(do="beat")
            for key, _ in self._selector.select(0.05):
                if key.data is not None:
                    key.data()
            for link in self._links:
                link.check_silence(time.monotonic())
                if link.alive and os.waitid(os.P_PID, link.client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    status = os.waitstatus_to_exitcode(os.waitpid(link.client.pid, 0)[1])
                    link.client.ended(status)
                    self._read_errors(link)
                    link.drain()
                    link.ended(status)
                    self._redial.take(link, time.monotonic())

    def _read_errors(self, link: Link) -> None:
        stream = link.client.streams[1]
        try:
            while (lines := stream.read(time.monotonic())) is not None:
                link.client.wrote(lines, time.monotonic())
        except BlockingIOError:
            pass
        link.client.wrote(stream.close(), time.monotonic())

    def _stop(self, number: int) -> None:
        raise LaunchError("interrupted", 128 + number)

    def _problem(self, link: Link, text: str) -> None:
        self._problems.setdefault(link.machine, []).append(text)

    # ---- For people ----

    def _print(self) -> None:
        headings = (*_HEADINGS, "sends") if self._arguments.measure else _HEADINGS
        rows = [list(headings), *(self._row(link) for link in self._links)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
        for row in rows:
            self._printer.result("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        for machine, problems in self._problems.items():
            for text in problems:
                self._printer.result(f"FAIL  {machine}: {text}")
        wrong = len(self._problems)
        self._printer.result(f"{len(self._links) - wrong} hosts ok, {wrong} FAIL")

    def _port(self, link: Link) -> str:
        """Whether the coordinator may listen there; a dash for the other hosts."""
        if not link.part.coordinator:
            return "-"
        wrong = any(subject == "port" and level == Level.FAIL.value for level, subject, _ in self._findings(link))
        return f"{self._arguments.port or 'any'} {'FAIL' if wrong else 'free'}"

    def _findings(self, link: Link) -> list[tuple[str, str, str]]:
        return self._checked.get(link.machine, {}).get("findings", [])

    def _row(self, link: Link) -> list[str]:
        if link.hello is None:
            return [link.machine, "FAIL", *["-"] * (len(_HEADINGS) - 2 + self._arguments.measure)]
        checked = self._checked.get(link.machine, {})
        probed = self._probed.get(link.machine, {})
        results = probed.get("results", [])
        reached = [seconds for seconds, error in results if error is None]
        rate = checked.get("mbit")
        interface = f"{checked.get('interface') or '-'}{f' ({rate / 1000:g} Gbit/s)' if rate else ''}"
        row = [
            link.machine,
            f"{self._greeted[link.machine]:.2f} s",
            str(link.hello.get("release")),
            str(link.hello.get("python", "-")),
            f"{self._clocks[link.machine]:+.1f} s",
            str(link.hello.get("cores")),
            str(checked.get("address", "-")),
            interface,
            self._port(link),
            str(checked.get("locked", "-")),
            f"{len(reached)} of {len(results)}" if results else "-",
            f"{max(reached) * 1000:.1f} ms" if reached else "-",
        ]
        if self._arguments.measure:
            sent = probed.get("rate")
            row.append("-" if sent is None else f"{sent * 8 / 1e9:.2f} Gbit/s")
        return row
