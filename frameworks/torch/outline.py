"""What all ranks are to have in common: compared when all have told each other, before anything else is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from byteps.errors import FailedPreconditionError, StatusCode
from byteps.torch.process_set import ProcessSet


class Outline(Protocol):
    """What counts of a thing that each rank has."""

    @property
    def refusal(self) -> str:
        """Why this rank cannot take part; "": it can."""

    def difference(self, other: Any) -> tuple[str, str] | None:
        """The first thing that is not the same in both, as each of them has it."""


def compare(outlines: Sequence[Outline], process_set: ProcessSet, caller: str, what: str, remedy: str) -> None:
    """Raises FailedPreconditionError if the ranks' outlines differ, or one has a refusal: it names the ranks.

    Args:
        outlines: of the ranks of the process set, in their order.
        caller: the function that compares them.
        what: the things, for people.
        remedy: what to do where they differ.
    """
    ranks = list(process_set.ranks or range(len(outlines)))
    complaint = ""
    for rank, outline in zip(ranks, outlines):
        found = outlines[0].difference(outline)
        if outline.refusal:
            complaint = f"rank {rank} cannot take part: {outline.refusal}"
            break
        if found is not None and not complaint:
            complaint = (
                f"the ranks' {what} differ: rank {ranks[0]} has {found[0]}, rank {rank} has {found[1]}. {remedy}"
            )
    if complaint:
        raise FailedPreconditionError(f"{caller}: {complaint}", StatusCode.FAILED_PRECONDITION)
