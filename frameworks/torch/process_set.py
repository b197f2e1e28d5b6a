"""Process sets, as the operations of PyTorch's tensors take them, and the barrier of a set."""

from __future__ import annotations

from byteps.horovod_basics import barrier
from byteps.process_set import (
    ProcessSet,
    add_process_set,
    check_process_set,
    global_process_set,
    known_process_set,
    remove_process_set,
    take_process_sets,
)

__all__ = [
    "ProcessSet",
    "add_process_set",
    "barrier",
    "check_process_set",
    "global_process_set",
    "known_process_set",
    "remove_process_set",
    "take_process_sets",
]
