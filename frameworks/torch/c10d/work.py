"""Operations in flight, as torch.distributed knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.device_streams import is_device
from byteps.torch.handle import Handle, wait_all
from byteps.torch.operation_future import operation_future

import torch
from torch._C._distributed_c10d import Work


class _All:
    """Several operations, to be told of when all have ended."""

    def __init__(self, handles: Sequence[Handle | CollectiveHandle[Any]]) -> None:
        self._handles = handles

    def finish_on_host(self) -> None:
        first: Exception | None = None
        for handle in self._handles:
            try:
                handle.finish_on_host()
            except Exception as error:  # kept, and raised below
                first = first or error
        if first is not None:
            raise first


class BytePSWork(Work):
    """What the operations of the process group return.

    Args:
        handles: the operations: one, or what was started together.
        outputs: the tensors that hold the result, when all have ended.
        timeout: of wait() without one.
    """

    def __init__(
        self, handles: Sequence[Handle | CollectiveHandle[Any]], outputs: list[torch.Tensor], timeout: timedelta
    ) -> None:
        super().__init__()
        self.handles = list(handles)
        self.outputs = outputs
        self._timeout = timeout
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the result is there; raises the operation's error. `timeout`: 0: that of the group."""
        limit = timeout if timeout > timedelta(0) else self._timeout
        wait_all(self.handles, limit.total_seconds())
        return True

    def synchronize(self, timeout: float | None = None) -> None:
        """wait(): tensors on a device have their values then."""
        self.wait(timedelta(0) if timeout is None else timedelta(seconds=timeout))

    def is_completed(self) -> bool:
        """Whether it has ended, and the result is in the tensors. Never blocks."""
        if not all(handle.poll() for handle in self.handles):
            return False
        if not any(is_device(output) for output in self.outputs):
            with contextlib.suppress(Exception):  # wait() raises it
                wait_all(self.handles)  # copies to where the result is wanted
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """Its error, if it has ended with one."""
        if not self.is_completed():
            return None
        try:
            wait_all(self.handles)
        except Exception as error:  # asked for
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result; waits for them."""
        self.wait()
        return self.outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future with the tensors. Asked for in a backward pass, as DDP does: the pass raises the operation's error,
        at its end."""
        if self._future is None:
            outputs = self.outputs
            self._future = operation_future(_All(self.handles), lambda _: outputs, outputs)
        return self._future
