"""Several operations in flight under one handle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from byteps.torch.handle import Handle

import torch


class GroupHandle:
    """What grouped operations return; give it to poll() and synchronize(), which returns the list of outputs."""

    def __init__(self, name: str, handles: Sequence[Handle]) -> None:
        self.name = name
        self._handles = list(handles)

    def poll(self) -> bool:
        """Whether all operations have ended. Never blocks."""
        return all(handle.poll() for handle in self._handles)

    def synchronize(self, timeout: float | None = None) -> list[torch.Tensor]:
        """Waits for all and returns their outputs; raises the first error, when all have ended. May be called again.
        `timeout`: seconds for each."""
        wait_all(self._handles, timeout)
        return [handle.synchronize() for handle in self._handles]

    def cancel(self) -> None:
        """Asks to give all up."""
        for handle in self._handles:
            handle.cancel()

    def __repr__(self) -> str:
        return f"<byteps.torch.GroupHandle {self.name!r} of {len(self._handles)}>"


def wait_all(handles: Any, timeout: float | None = None) -> None:
    """Waits for all, also when one fails; then raises the first error."""
    first: Exception | None = None
    for handle in handles:
        try:
            handle.synchronize(timeout)
        except Exception as error:  # kept, and raised below
            first = first or error
    if first is not None:
        raise first


def start_all(start: Callable[[int], Handle], count: int) -> list[Handle]:
    """Starts operations 0 .. count-1. If one is not accepted, the others are given up and waited for: no memory is
    written after the error."""
    handles: list[Handle] = []
    try:
        for index in range(count):
            handles.append(start(index))
    except BaseException:
        for handle in handles:
            handle.cancel()
        with contextlib.suppress(Exception):
            wait_all(handles)
        raise
    return handles
