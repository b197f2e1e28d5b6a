"""An operation in flight, as torch.distributed knows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from byteps.torch.completions import when_done
from byteps.torch.group_handle import GroupHandle
from byteps.torch.handle import Handle

import torch
from torch._C._distributed_c10d import Work


class BytePSWork(Work):
    """What the operations of the process group return.

    Args:
        handle: the operation.
        result: the tensors that hold the result, when it has ended.
        timeout: of wait() without one.
    """

    def __init__(self, handle: Handle | GroupHandle, result: list[torch.Tensor], timeout: timedelta) -> None:
        super().__init__()
        self._handle = handle
        self._result = result
        self._timeout = timeout
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the result is there; raises the operation's error. `timeout`: 0: that of the group."""
        limit = timeout if timeout > timedelta(0) else self._timeout
        self._handle.synchronize(limit.total_seconds())
        return True

    def synchronize(self) -> None:
        """wait(): tensors on a device have their values then."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended. Never blocks."""
        return self._handle.poll()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        if not self._handle.poll():
            return False
        return self.exception() is None

    def exception(self) -> Any:
        """Its error, if it has ended with one."""
        if not self._handle.poll():
            return None
        try:
            self._handle.synchronize()
        except Exception as error:  # asked for
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result; waits for them."""
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future with the tensors."""
        if self._future is None:
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            result = self._result

            def done(output: Any, error: BaseException | None) -> None:
                del output
                if error is not None:
                    future.set_exception(error)  # type: ignore[arg-type]
                else:
                    future.set_result(result)

            self._future = future
            when_done(self._handle, done)
        return self._future
