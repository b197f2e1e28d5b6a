"""Outlines of ranks that are alike and that are not, over three workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import byteps
import pytest
from byteps.outlines import agree

RunWorkers = Callable[..., Any]


def _compared() -> None:
    byteps.init()
    rank = byteps.rank()
    agree(["a", "b"], "alike", "letters")
    agree([], "none", "letters")
    outlines = {
        "another": (["a", "b"], ["a", "c"], "rank 0 has b, rank 2 has c"),
        "fewer": (["a", "b"], ["a"], "rank 0 has b, rank 2 has no more of them"),
        "more": (["a"], ["a", "b"], "rank 0 has no more of them, rank 2 has b"),
        "order": (["a", "b"], ["b", "a"], "rank 0 has a, rank 2 has b"),
    }
    for name, (of_most, of_last, expected) in outlines.items():
        with pytest.raises(byteps.FailedPreconditionError, match=f"the ranks differ in letters: {expected}"):
            agree(of_last if rank == 2 else of_most, name, "letters")
    # The session is as good as before.
    agree(["a"], "another", "letters")


def _of_a_process_set() -> None:
    byteps.init()
    rank = byteps.rank()
    last = byteps.add_process_set([1, 2])
    if rank == 0:
        return
    agree(["a"], "alike", "letters", last)
    with pytest.raises(byteps.FailedPreconditionError, match="rank 1 has 1, rank 2 has 2"):
        agree([str(rank)], "different", "letters", last)


def _while_a_rank_has_joined() -> None:
    byteps.init()
    rank = byteps.rank()
    if rank != 1:
        agree(["a"], "alike", "letters")
    byteps.join()
    agree(["a"], "alike", "letters")


@pytest.mark.parametrize("body", [_compared, _of_a_process_set, _while_a_rank_has_joined])
def test_outlines(run_workers: RunWorkers, body: Callable[[], None]) -> None:
    run_workers(body, workers=3, BYTEPS_OP_TIMEOUT="60")
