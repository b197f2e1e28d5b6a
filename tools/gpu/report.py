"""results.md: the tables of a run, as they can be put into docs/performance.

(out / "results.md").write_text(text(facts, figures, verdicts, rows))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .goals import Verdict
from .steps import Row

_RATES = {
    "rate_null": "one worker alone: the copies, and nothing else",
    "rate_server": "one worker, one server, shared memory",
    "rate_server_tcp": "one worker, one server, TCP on loopback",
    "rate_two": "two workers, among themselves through the host",
    "rate_two_server": "two workers, one server, shared memory",
    "rate_two_nccl": "two workers, by NCCL",
    "rate_gloo": "Gloo, two workers",
}


def size_text(size: int) -> str:
    """1536 -> 1.5 KiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|" + "|".join(["---"] * len(head)) + "|"
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _goals(verdicts: Sequence[Verdict]) -> list[str]:
    rows = []
    for verdict in verdicts:
        goal = verdict.goal
        figure = "-" if verdict.reached is None else f"{verdict.reached:.2f}"
        peer = "-" if verdict.peer is None else f"{verdict.peer:.2f}"
        ratio = "-" if verdict.ratio is None else goal.text(verdict.ratio)
        met = "not measured" if verdict.ratio is None else "met" if verdict.met else "**below the goal**"
        rows.append([goal.what, figure, f"{goal.peer_is}: {peer}", ratio, goal.text(goal.least), met])
    return _table(["what", "GB/s", "against, GB/s", "ratio", "goal", ""], rows)


def _rates(figures: Mapping[str, Any]) -> list[str]:
    rows = []
    for step, what in _RATES.items():
        for row in figures.get(step, {}).get("rows", ()):
            rows.append([what, f"{row['tensors']} x {size_text(row['bytes'])}", f"{row['gb_s']:.2f}"])
    return _table(["what", "tensors", "GB/s of each worker"], rows)


def _loops(figures: Mapping[str, Any]) -> list[str]:
    rows = [[size_text(row["chunk"]), f"{row['gb_s']:.2f}"] for row in figures.get("copies_loop", {}).get("rows", ())]
    lines = _table(["chunk", "GB/s of each direction"], rows)
    two = figures.get("copies_two")
    if two:
        each = " and ".join(f"{rate:.2f}" for rate in two["rates"])
        lines += [f"Two processes with such a loop at once, {two['gpus']} GPU(s), chunks of 4 MiB: {each} GB/s.", ""]
    return lines


def _copies(figures: Mapping[str, Any]) -> list[str]:
    found = figures.get("copies_table", {})
    rows = [
        [row["kind"], size_text(row["chunk"]), *(f"{row[way]:.2f}" for way in ("to host", "to device", "both"))]
        for row in found.get("rows", ())
    ]
    lines = _table(["memory of the host", "chunk", "to the host", "to the GPU", "both, each"], rows)
    if "latency_us" in found:
        waiting, asking = found["latency_us"]["waiting"], found["latency_us"]["asking"]
        lines += [
            f"Until the host knows of 4 KiB: {waiting:.1f} us by waiting for the stream, {asking:.1f} us by asking for "
            "an event (Python's calls included).",
            "",
        ]
    return lines


def text(
    facts: Mapping[str, str], figures: Mapping[str, Any], verdicts: Sequence[Verdict], steps: Sequence[Row]
) -> str:
    """All tables."""
    lines = ["# A run of gpu_check", "", *_table(["", ""], [[key, value] for key, value in facts.items()])]
    lines += ["## Goals", "", *_goals(verdicts)]
    lines += ["## push_pull of tensors on the GPU", ""]
    lines += ["float32, average, in place, all in flight. GB/s of tensor: each byte crosses the bus twice.", ""]
    lines += _rates(figures)
    lines += ["## The raw two-way loop", "", *_loops(figures)]
    lines += ["## Copies", "", 'GB/s; "both" is the rate of each direction while both are under way.', ""]
    lines += _copies(figures)
    lines += ["## Steps", ""]
    lines += _table(["step", "result", "seconds"], [[row.name, row.result, f"{row.seconds:.1f}"] for row in steps])
    return "\n".join(lines)
