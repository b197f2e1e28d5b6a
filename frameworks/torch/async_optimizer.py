"""DistributedOptimizer in asynchronous training: the servers keep the parameters, and each step of a rank is added to
them. No rank waits for the others, except as far as BYTEPS_STALENESS says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from byteps.asynchronous import Beginning
from byteps.basics import barrier, rank
from byteps.reduce_op import Sum
from byteps.session import current_session
from byteps.torch.adasum_optimizer import AdasumOptimizer
from byteps.torch.device_streams import DevicePart, is_device
from byteps.torch.dtypes import dtype_code
from byteps.torch.handle import Handle, wait_all

import torch


class AsyncOptimizer(AdasumOptimizer):
    """step() takes the optimizer's own step, adds what that has changed to the parameters that the servers keep, and
    gets these: with the steps that the others have taken meanwhile.

    The servers begin with the parameters that rank 0 has at its first step of a session, for which all ranks wait.
    """

    _beginning: Beginning

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing: gradients are this rank's own, clipped or not, and step() waits for none of them."""
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's own step, and makes the parameters those of the servers.

        Raises:
            BytePSError: see byteps.torch.synchronize(). The parameters are then those of this rank's own step, which
                the servers may have added or not.
        """
        if not self._is_distributed:
            return self.own_step(closure)
        try:
            return self._step(closure)
        finally:
            self._reducer.reset()

    # To PyTorch: this calls the step hooks already (the optimizer's own step does).
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        parameters = [parameter for parameter in self._reducer.names if parameter.requires_grad]
        self._begin(parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        result = self.own_step(closure)
        with torch.no_grad():
            changes = [parameter.sub(start) for parameter, start in zip(parameters, before)]
            self._add(parameters, changes)
            for parameter, value in zip(parameters, changes):
                parameter.copy_(value)
        return result

    def _begin(self, parameters: list[torch.Tensor]) -> None:
        def values(indices: list[int]) -> list[torch.Tensor]:
            first = rank() == 0
            return [parameters[i].detach().clone() if first else torch.zeros_like(parameters[i]) for i in indices]

        def add(indices: list[int], values: list[torch.Tensor]) -> None:
            self._add([parameters[index] for index in indices], values)

        self._beginning.begin([self._reducer.names[one] for one in parameters], values, add, barrier)

    def _add(self, parameters: list[torch.Tensor], changes: list[torch.Tensor]) -> None:
        """Makes of each change the value that the servers have with it."""
        begun = self._beginning.prefix
        names = [begun + self._reducer.names[one].removeprefix("Gradient.") for one in parameters]
        add_to_servers(names, changes, [self._reducer.priorities[one] for one in parameters])


def add_to_servers(names: Sequence[str], changes: Sequence[torch.Tensor], priorities: Sequence[int]) -> None:
    """Makes of each change the value that the servers have of its name with it. Raises BytePSError."""
    handles: list[Handle] = []
    try:
        for each in zip(names, changes, priorities):
            handles.append(_push(*each))
    finally:
        wait_all(handles)


def _push(name: str, change: torch.Tensor, priority: int) -> Handle:
    part: DevicePart | None = None
    if is_device(change):
        part = DevicePart(change, change)
        address, held, staged = part.read, part.held, part.staged
    else:
        held = staged = torch.empty(change.shape, dtype=change.dtype, device="cpu").copy_(change)
        address = staged.data_ptr()
    request = current_session().native.push_pull(
        name,
        dtype_code(change.dtype),
        change.shape,
        address,
        address,
        Sum,
        held,
        priority,
        place=None if part is None else part.place,
        asynchronous=True,
    )
    return Handle(request, name, change, staged, device=part)
