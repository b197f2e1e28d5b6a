"""Timelines (docs/timeline.md) as tests look at them.

timeline = read_whole(path)            # fails unless it is one JSON array whose events nest
for operation in timeline.operations("push_pull", "Gradient.0.weight"):
    operation.begin, operation.end, operation.args["round"]
    timeline.parts(operation)          # {0: {"QUEUE": span, "PUSH": span, "SERVER": span}, ...}
timeline.spans["backward"]             # of the program
timeline.moments["STEP"]               # their times
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PART_STAGES = ("QUEUE", "PUSH", "SERVER")
# Of anything a test waits for.
DEADLINE = 120.0


@dataclass(frozen=True)
class Span:
    """From `begin` to `end`, in microseconds of the host's clock."""

    name: str
    begin: int
    end: int
    row: int
    args: dict[str, Any] = field(default_factory=dict)

    def contains(self, other: Span) -> bool:
        return self.begin <= other.begin and other.end <= self.end


class Timeline:
    """The events of one rank."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.rows: dict[int, str] = {}  # their names
        self.process = ""
        self.complete: list[Span] = []  # of the library
        self.spans: dict[str, list[Span]] = defaultdict(list)  # of the program
        self.moments: dict[str, list[int]] = defaultdict(list)
        begun: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            phase = event["ph"]
            if phase == "M":
                if event["name"] == "thread_name":
                    assert self.rows.setdefault(event["tid"], event["args"]["name"]) == event["args"]["name"]
                elif event["name"] == "process_name":
                    self.process = event["args"]["name"]
            elif phase == "X":
                end = event["ts"] + event["dur"]
                self.complete.append(Span(event["name"], event["ts"], end, event["tid"], event["args"]))
            elif phase == "B":
                begun[event["tid"]].append(event)
            elif phase == "E":
                begin = begun[event["tid"]].pop()
                self.spans[begin["name"]].append(Span(begin["name"], begin["ts"], event["ts"], event["tid"]))
            else:
                assert phase == "i", event
                self.moments[event["name"]].append(event["ts"])
        assert not any(begun.values()), f"spans without an end: {begun}"
        assert not any("dropped" in name for name in self.moments), self.moments

    def operations(self, kind: str, tensor: str | None = None) -> list[Span]:
        """In the order in which they were submitted."""
        found = [span for span in self.complete if span.name == kind and tensor in (None, span.args["tensor"])]
        return sorted(found, key=lambda span: span.begin)

    def operation(self, kind: str, tensor: str, round: int) -> Span:
        (found,) = [span for span in self.operations(kind, tensor) if span.args["round"] == round]
        return found

    def stage(self, operation: Span, name: str) -> Span:
        """What the operation itself went through."""
        (found,) = [
            span
            for span in self.complete
            if span.name == name and span.row == operation.row and span.args["round"] == operation.args["round"]
        ]
        return found

    def parts(self, operation: Span) -> dict[int, dict[str, Span]]:
        """By the number of the part and the name of the stage."""
        found: dict[int, dict[str, Span]] = defaultdict(dict)
        for span in self.complete:
            args = span.args
            mine = args.get("tensor") == operation.args["tensor"] and args.get("round") == operation.args["round"]
            if span.name in PART_STAGES and mine:
                assert span.name not in found[args["part"]], f"twice: {span}"
                found[args["part"]][span.name] = span
        return found

    def check_nesting(self) -> None:
        """Events of a row do not overlap, unless one contains the other: otherwise viewers show nonsense."""
        rows = defaultdict(list)
        for span in [*self.complete, *(span for spans in self.spans.values() for span in spans)]:
            assert span.begin <= span.end, span
            assert span.row in self.rows, f"a row without a name: {span}"
            rows[span.row].append(span)
        for spans in rows.values():
            around: list[Span] = []
            for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
                while around and around[-1].end <= span.begin:
                    around.pop()
                assert not around or around[-1].contains(span), f"{span} overlaps {around[-1]}"
                around.append(span)


def read_whole(path: Path) -> Timeline:
    """Of a file that was ended in order."""
    timeline = Timeline(json.loads(path.read_text(encoding="utf-8")))
    timeline.check_nesting()
    return timeline


def priorities(path: Path) -> dict[str, set[int]]:
    """With which priorities the operations of each name were submitted."""
    found: dict[str, set[int]] = defaultdict(set)
    for span in read_whole(path).complete:
        if "priority" in span.args:
            found[span.args["tensor"]].add(span.args["priority"])
    return dict(found)


def check_push_pull(timeline: Timeline, operation: Span, elements_bytes: int, servers: int = 1) -> None:
    """It has gone through servers: each part was queued, pushed and answered, one after the other, inside of it."""
    args = operation.args
    assert (args["bytes"], args["outcome"]) == (elements_bytes, "OK"), operation
    submit = timeline.stage(operation, "SUBMIT")
    assert operation.begin == submit.begin and operation.contains(submit)
    parts = timeline.parts(operation)
    assert sorted(parts) == list(range(args["parts"])), (operation, parts)
    for number, stages in parts.items():
        assert tuple(stages) and set(stages) == set(PART_STAGES), (number, stages)
        queue, push, server = (stages[name] for name in PART_STAGES)
        assert submit.end <= queue.begin and queue.end == push.begin and push.end == server.begin, stages
        assert all(operation.contains(span) for span in stages.values()), stages
        assert 0 <= queue.args["server"] < servers
        assert timeline.rows[queue.row] == f"{args['tensor']}, part {number}"
    assert sum(stages["QUEUE"].args["bytes"] for stages in parts.values()) == elements_bytes


def path_of(path: Path | str, rank: int) -> Path:
    """Where a rank writes that was told to write to `path`."""
    path = Path(path)
    return path if rank == 0 else path.with_suffix(f".rank{rank}{path.suffix}")


def wait_until_home(path: Path | str, tensor: str, round: int) -> None:
    """Until the timeline, which is being written, has the end of a tensor's operation."""
    end = f'"tensor":"{tensor}","round":{round},"bytes":'  # (a part says its number before its bytes)
    wait_for(lambda: end in Path(path).read_text(encoding="utf-8"), f"{tensor} did not come home in round {round}")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Raises TimeoutError after DEADLINE."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {DEADLINE} s")
        time.sleep(0.005)
