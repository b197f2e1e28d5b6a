"""The figures of a run next to what they are to reach.

    for verdict in verdicts(figures): ...

A missed goal is a result that a reader is to see, and no failure: a machine may share its bus, or its cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Goal:
    """`step` is to reach `least` times what `peer` reaches, in the same run."""

    name: str
    what: str
    step: str
    peer: str
    peer_is: str
    least: float

    def text(self, ratio: float) -> str:
        """A ratio as people read it: in percent, or several times as much."""
        return f"{ratio:.1f} x" if self.least >= 2 else f"{100 * ratio:.0f}%"


GOALS = (
    Goal("goal_null", "one worker, a transport that answers at once", "rate_null", "copies_loop", "the raw loop", 0.95),
    Goal("goal_server", "one worker and a server, shared memory", "rate_server", "copies_loop", "the raw loop", 0.85),
    Goal("goal_two", "two workers, both together", "rate_two", "copies_two", "two raw loops at once", 0.75),
    Goal("goal_gloo", "two workers, each", "rate_two", "rate_gloo", "Gloo on CUDA tensors", 4.0),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A goal, and what the run has reached; `ratio` None: a figure is missing."""

    goal: Goal
    reached: float | None
    peer: float | None

    @property
    def ratio(self) -> float | None:
        """What was reached of the peer's figure."""
        return None if self.reached is None or not self.peer else self.reached / self.peer

    @property
    def met(self) -> bool:
        """Is it reached?"""
        return self.ratio is not None and self.ratio >= self.goal.least

    def line(self) -> str:
        """For the table of steps."""
        if self.ratio is None:
            missing = self.goal.step if self.reached is None else self.goal.peer
            return f"no ratio: {missing} has no figure"
        words = f"{self.goal.text(self.ratio)} of {self.goal.peer_is}; goal: {self.goal.text(self.goal.least)}"
        return words if self.met else f"below the goal: {words}"


def _figure(figures: Mapping[str, Any], step: str, together: bool) -> float | None:
    """GB/s of a step: of each worker, or of all together."""
    found = figures.get(step)
    if found is None:
        return None
    if "sum" in found:
        return float(found["sum"])
    return float(found["best"]) * (found.get("workers", 1) if together else 1)


def verdicts(figures: Mapping[str, Any]) -> list[Verdict]:
    """Of all goals, by the figures of the steps of this run."""
    return [
        Verdict(
            goal,
            _figure(figures, goal.step, together=goal.peer == "copies_two"),
            _figure(figures, goal.peer, together=False),
        )
        for goal in GOALS
    ]
