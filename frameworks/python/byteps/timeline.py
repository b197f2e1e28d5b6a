"""What becomes of every operation, as a file for people: docs/timeline.md.

    bps.start_timeline("/tmp/timeline.json")
    for batch in batches:
        with bps.timeline_span("forward"):
            loss = model(batch)
        ...
    bps.stop_timeline()

`python -m byteps.timeline_summary /tmp/timeline*.json` adds up what is in such files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from byteps.session import current_session

# BPS_TIMELINE_... of abi/byteps.h.
MOMENT, BEGIN, END = 0, 1, 2


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Writes what becomes of every operation of this rank from now on, stage by stage, as Chrome's trace events.

    Rank 0 writes to `file_path`; rank 3 puts `.rank3` before the extension. Folders are made, a file that is there is
    overwritten. Ranks need not call it together. stop_timeline(), or shutdown(), ends the file.

    Args:
        file_path: the file.
        mark_cycles: shows where each step begins: the first operation goes into a round that none has gone into. (There
            are no cycles as Horovod's: each tensor goes as it comes.)

    Raises:
        InvalidArgumentError: the file cannot be written.
        FailedPreconditionError: a timeline is being written already.
        NotInitializedError: before init().
    """
    current_session().native.start_timeline(os.fspath(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the file that start_timeline() or a variable (BYTEPS_TRACE_ON, HOROVOD_TIMELINE) has begun, and waits until
    it is written.

    Raises:
        FailedPreconditionError: none is being written.
        UnavailableError: not all of it could be written.
        NotInitializedError: before init().
    """
    current_session().native.stop_timeline()


def timeline_mark(name: str) -> None:
    """Puts a moment of the program's own into the timeline, on a row of the thread that calls; nothing while there is
    none. Raises NotInitializedError before init()."""
    current_session().native.mark(name, MOMENT)


@contextlib.contextmanager
def timeline_span(name: str) -> Iterator[None]:
    """Puts what is done inside into the timeline, as timeline_mark() does; spans of a thread may nest."""
    native = current_session().native
    native.mark(name, BEGIN)
    try:
        yield
    finally:
        native.mark("", END)
