"""Memory itself as the peer of push_pull within one host.

Each worker, all at the same time, does in memory of its own what its share of a reduction takes at the least: of its
1/n of the elements it adds up n inputs by c = a + b, and writes the result for n outputs. No process talks to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .workload import Workload


class Fold:
    """A peer (peer.py)."""

    name = "raw"
    reduces = False

    def __init__(self, bps: Any) -> None:
        self._world = bps.size()

    def prepare(self, workload: Workload) -> None:
        """What comes are rounds of these tensors."""
        slice_ = max(1, workload.elements // self._world)
        like = workload.tensors[0]
        self._inputs = [torch.ones(slice_, dtype=like.dtype) for _ in range(self._world)]
        self._outputs = [torch.zeros(slice_, dtype=like.dtype) for _ in range(self._world)]
        self._tensors = len(workload.tensors)

    def run(self) -> None:
        """One round."""
        result, *others = self._outputs
        for _ in range(self._tensors):
            if self._world == 1:
                result.copy_(self._inputs[0])
                continue
            torch.add(self._inputs[0], self._inputs[1], out=result)
            for more in self._inputs[2:]:
                torch.add(result, more, out=result)
            for other in others:
                other.copy_(result)

    def stream(self, rounds: int) -> None:
        """So many rounds."""
        for _ in range(rounds):
            self.run()

    def close(self) -> None:
        """Nothing to do."""
