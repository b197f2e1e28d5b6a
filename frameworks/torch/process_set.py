"""Process sets: the ranks that take part in an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.basics import is_initialized, rank, size


class ProcessSet:
    """A set of ranks. This release has operations over all ranks alone, which is `global_process_set`."""

    process_set_id: int | None = None  # None: not known to the job
    ranks: list[int] | None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        self.ranks = sorted(set(ranks_or_comm))

    def size(self) -> int | None:
        """How many ranks it has; None before init()."""
        return None if self.process_set_id is None or not is_initialized() else size()

    def rank(self) -> int | None:
        """This worker's place in it; None before init(), or if it is not in it."""
        return None if self.process_set_id is None or not is_initialized() else rank()

    def included(self) -> bool | None:
        """Whether this worker is in it; None before init()."""
        return None if self.process_set_id is None or not is_initialized() else True

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Global(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int] | None:  # type: ignore[override]
        return list(range(size())) if is_initialized() else None

    @ranks.setter
    def ranks(self, value: object) -> None:
        pass


global_process_set = _Global()


def check_process_set(process_set: Any) -> None:
    """Refuses sets that operations cannot be over.

    Raises:
        TypeError: no process set.
        NotImplementedError: one of some ranks.
    """
    if process_set is global_process_set:
        return
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}; it must be a ProcessSet")
    if is_initialized() and process_set.ranks == global_process_set.ranks:
        return
    raise NotImplementedError(
        f"process_set is {process_set}: this release has operations over all ranks alone (global_process_set)"
    )


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set of ranks known to the job. Raises NotImplementedError for all sets but that of all ranks."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    check_process_set(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; False if the job does not know it, or if it is the set of all ranks."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}; it must be a ProcessSet")
    return False
