"""Where rows go: a table for people, JSON or CSV for programs.

writer = make_writer("table", settings, peers)       # "json", "csv"
writer.write(row)
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from typing import Protocol

from .row import Row, Settings

# A round of fewer bytes says little about the CPU time of a gigabyte.
_CPU_FROM = 10**5


class Writer(Protocol):
    """Writes each row as it comes, to the standard output."""

    def write(self, row: Row) -> None:
        """One more."""


class Table:
    """For people."""

    def __init__(self, settings: Settings, peers: Sequence[str]) -> None:
        self._peers = peers
        checked = "every output checked" if settings.mode == "latency" else "the last outputs checked"
        print(f"{settings.title()}; {checked}")
        # In mode latency the time is the median.
        self._percentiles = [90, 99] if settings.mode == "latency" else [50, 90, 99]
        header = f"{'bytes':>12} {'time us':>12}"
        header += "".join(f" {f'p{percent} us':>12}" for percent in self._percentiles)
        header += f" {'algbw GB/s':>10} {'cpu s/GB':>17}"
        for name in peers:
            header += f" {name + ' us':>12} {'ratio':>7}"
        print(header, flush=True)

    def write(self, row: Row) -> None:
        """One line."""
        values = row.values()
        line = f"{row.size:>12} {values['time_us']:>12.1f}"
        line += "".join(f" {values[f'p{percent}_us']:>12.1f}" for percent in self._percentiles)
        line += f" {values['algbw_gb_s']:>10.3f} {self._cpu(row):>17}"
        for name in self._peers:
            line += f" {values[f'{name}_us']:>12.1f} {values[f'{name}_ratio']:>7.2f}"
        print(line, flush=True)

    def _cpu(self, row: Row) -> str:
        """Workers, servers, coordinator."""
        if row.bytes_per_round < _CPU_FROM:
            return "-"
        cpu = row.cpu_per_gigabyte()
        return f"{cpu.worker:.2f}+{cpu.server:.2f}+{cpu.coordinator:.2f}"


class Json:
    """One object per line."""

    def write(self, row: Row) -> None:
        """One line."""
        print(json.dumps(row.values()), flush=True)


class Csv:
    """With a header."""

    def __init__(self) -> None:
        self._writer: csv.DictWriter[str] | None = None

    def write(self, row: Row) -> None:
        """One line, the first time two."""
        values = row.values()
        if self._writer is None:
            self._writer = csv.DictWriter(sys.stdout, list(values), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow(values)
        sys.stdout.flush()


def make_writer(form: str, settings: Settings, peers: Sequence[str]) -> Writer:
    """`form`: "table", "json" or "csv"."""
    if form == "json":
        return Json()
    return Csv() if form == "csv" else Table(settings, peers)
