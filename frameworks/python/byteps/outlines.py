"""What all ranks must have alike, compared before their tensors meet.

Tensors meet by their names, so a rank whose model has another layer would wait for a tensor that no other rank sends,
until its deadline. An outline says in lines of text what a rank is about to send.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import zip_longest

from byteps.array_collectives import allreduce
from byteps.errors import FailedPreconditionError, StatusCode
from byteps.objects import allgather_object
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Sum
from byteps.session import current_session


def _number_of(outline: Sequence[str]) -> int:
    """A checksum whose square's sum over all ranks of a job is below 2 ** 63."""
    return int.from_bytes(blake2b("\n".join(outline).encode(), digest_size=3).digest(), "little")


def _complaint(outlines: Sequence[Sequence[str]], ranks: Sequence[int]) -> str:
    """The first thing that a rank has not as the first rank has it."""
    for rank, outline in zip(ranks, outlines):
        for mine, its in zip_longest(outlines[0], outline):
            if mine != its:
                return f"rank {ranks[0]} has {mine or 'no more of them'}, rank {rank} has {its or 'no more of them'}"
    return "their checksums differ"


def agree(outline: Sequence[str], name: str, what: str, process_set: ProcessSet = global_process_set) -> None:
    """Compares the outlines of all ranks. A rank that has joined (byteps.join) has none.

    Args:
        outline: of this rank; its lines are not empty.
        name: of the operation, the same on all ranks.
        what: the things that the outline lists, for an error.
        process_set: the ranks that take part.

    Raises:
        FailedPreconditionError: on all of them, if the outlines differ: names the first difference.
        BytePSError: see byteps.errors.
    """
    number = _number_of(outline)
    sums = allreduce(array("q", [1, number, number * number]), name=f"{name}.sums", op=Sum, process_set=process_set)
    ranks, total, squares = (int(each) for each in sums)
    # The mean of squares is the square of the mean for equal numbers alone. A rank that has joined counts as zeros;
    # the smallest and the largest number could not be asked for then.
    if ranks * squares == total * total:
        return
    outlines = allgather_object(list(outline), name, process_set)
    of_ranks = process_set.ranks or range(current_session().native.info()["size"])
    raise FailedPreconditionError(
        f"the ranks differ in {what}: {_complaint(outlines, list(of_ranks))}. Build the same model, its layers in the "
        "same order, on all ranks",
        StatusCode.FAILED_PRECONDITION,
    )
