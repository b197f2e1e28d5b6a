"""Adds up what is in the files of a timeline (docs/timeline.md), or makes one file of those of all ranks.

    python -m byteps.timeline_summary /tmp/timeline*.json
    python -m byteps.timeline_summary --merge all.json /tmp/timeline*.json

For every rank it shows how much time operations have spent in each stage, over all tensors and parts (which overlap, so
the sums may be longer than the run), and the tensors that took longest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# In the order of a tensor's way; docs/timeline.md says what each is.
STAGES = ("SUBMIT", "GATHER", "LOCAL", "FINISH", "QUEUE", "PUSH", "SERVER")


def read_timeline(path: Path) -> tuple[list[Event], bool]:
    """The events of a file, and whether it has an end; of a process that was killed, the events that it had written.

    Raises ValueError: it is no timeline.
    """
    text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    whole = True
    try:
        events = json.loads(text)
    except json.JSONDecodeError:
        events, whole = _read_lines(text), False
    if not isinstance(events, list) or not all(isinstance(event, dict) and "ph" in event for event in events):
        raise ValueError(f"{path} is no timeline: not an array of events")
    return events, whole


def _read_lines(text: str) -> list[Event] | None:
    """One event on each line, up to one that is cut off."""
    lines = text.splitlines()
    if not lines or lines[0] != "[":
        return None
    events = []
    for line in lines[1:]:
        try:
            events.append(json.loads(line.rstrip(",")))
        except json.JSONDecodeError:
            break
    return events


@dataclass
class Times:
    """Of events of one kind, in microseconds."""

    count: int = 0
    total: int = 0
    longest: int = 0
    where: str = ""

    def add(self, duration: int, where: str) -> None:
        """One more of so many microseconds."""
        self.count += 1
        self.total += duration
        if duration >= self.longest:
            self.longest, self.where = duration, where

    def row(self, name: str) -> str:
        """As a line of a table, in milliseconds."""
        total, mean, longest = (time / 1000 for time in (self.total, self.total / self.count, self.longest))
        return f"  {name:<24}{self.count:>8}{total:>12.1f}{mean:>10.3f}{longest:>10.3f}  {self.where}"


def _table(title: str, times: Iterable[tuple[str, Times]]) -> list[str]:
    rows = [entry.row(name) for name, entry in times]
    head = f"  {title:<24}{'count':>8}{'total ms':>12}{'mean ms':>10}{'longest':>10}  where"
    return [head, *rows] if rows else []


def summarize(events: Sequence[Event], tensors: int = 10) -> str:
    """The tables of one rank's events."""
    stages: dict[str, Times] = defaultdict(Times)
    operations: dict[str, Times] = defaultdict(Times)
    spans: dict[str, Times] = defaultdict(Times)
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    open_spans: dict[int, list[Event]] = defaultdict(list)
    lines = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    for event in events:
        where = f"{rows.get(event.get('tid'), '')}, round {event.get('args', {}).get('round', '')}"
        if event["ph"] == "X" and event["name"] in STAGES:
            stages[event["name"]].add(event["dur"], where)
        elif event["ph"] == "X":
            operations[event["args"]["tensor"]].add(event["dur"], f"round {event['args']['round']}")
        elif event["ph"] == "B":
            open_spans[event["tid"]].append(event)
        elif event["ph"] == "E" and open_spans[event["tid"]]:
            begin = open_spans[event["tid"]].pop()
            spans[begin["name"]].add(event["ts"] - begin["ts"], "")
        elif "dropped" in event.get("args", {}):
            lines.append(f"  {event['name']}: what follows is not all")
    lines += _table("stage", ((name, stages[name]) for name in STAGES if name in stages))
    slowest = sorted(operations.items(), key=lambda item: -item[1].total)
    lines += _table("tensor", slowest[:tensors])
    if len(slowest) > tensors:
        lines.append(f"  ... and {len(slowest) - tensors} more")
    lines += _table("the program", spans.items())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The tool; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m byteps.timeline_summary", description="Adds up the files of a timeline."
    )
    parser.add_argument("files", nargs="+", type=Path, help="files of one or several ranks")
    parser.add_argument("--merge", type=Path, help="write all of them into this one file")
    parser.add_argument("--tensors", type=int, default=10, help="how many of the longest tensors are shown (10)")
    given = parser.parse_args(arguments)
    try:
        timelines = [read_timeline(path) for path in given.files]
    except (OSError, ValueError) as error:
        print(f"timeline_summary: {error}", file=sys.stderr)
        return 1
    if given.merge is not None:
        given.merge.write_text(json.dumps([event for events, _ in timelines for event in events]), encoding="utf-8")
        return 0
    for path, (events, whole) in zip(given.files, timelines):
        print(f"{path}: {summarize(events, given.tensors)}")
        if not whole:
            print("  the file has no end: its process was killed, or is still writing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
