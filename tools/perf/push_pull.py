"""BytePS, as bps_perf measures it.

exchange = PushPull(bps, workload, settings)
results = exchange.run()                          # all tensors, each submitted, then each waited for
seconds = exchange.stream(rounds=10)              # all tensors in flight all the time
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .row import Settings
    from .workload import Workload

_NO_RESULT = 113  # of any workload, but for sums by 113 workers: it is a prime


class PushPull:
    """Of the tensors of one workload."""

    def __init__(self, bps: Any, workload: Workload, settings: Settings) -> None:
        self._bps, self._workload = bps, workload
        self._start = bps.push_pull_async if settings.out_of_place else bps.push_pull_async_inplace
        self._op = getattr(bps, workload.op.capitalize())
        self._names = [f"{workload.name}.{index}" for index in range(len(workload.tensors))]
        new = bps.empty_like if settings.buffers else torch.empty_like
        self._outputs = [new(tensor) for tensor in workload.tensors] if settings.keeps_outputs else None

    def spoil(self) -> None:
        """Before a round whose results are checked: those of the round before are gone."""
        for output in self._outputs or ():
            output.fill_(_NO_RESULT)

    def _submit(self, index: int) -> Any:
        if self._outputs is not None:
            tensor, output = self._workload.tensors[index], self._outputs[index]
            return self._bps.push_pull_async_into(tensor, output, self._names[index], op=self._op)
        return self._start(self._workload.tensors[index], name=self._names[index], op=self._op)

    def run(self) -> list[torch.Tensor]:
        """One round; the results."""
        handles = [self._submit(index) for index in range(len(self._workload.tensors))]
        return [self._bps.synchronize(handle) for handle in handles]

    def stream(self, rounds: int) -> tuple[list[float], list[torch.Tensor]]:
        """Every tensor goes again as soon as it is back. Seconds from submission to result of each operation, and
        the last results."""
        count = len(self._workload.tensors)
        times, results, handles, began = [], [], [], []
        for index in range(count):
            began.append(time.perf_counter())
            handles.append(self._submit(index))
        for number in range(rounds * count):
            index = number % count
            result = self._bps.synchronize(handles[index])
            now = time.perf_counter()
            times.append(now - began[index])
            if number < (rounds - 1) * count:
                began[index] = now
                handles[index] = self._submit(index)
            else:
                results.append(result)
        return times, results
