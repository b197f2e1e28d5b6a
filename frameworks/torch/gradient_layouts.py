"""Which gradients are sparse: one answer for all ranks.

A rank whose backward pass did not reach an embedding cannot see that the others have sparse gradients for it. So at the
end of the first backward pass all ranks say what they have, once: a parameter is sparse from then on if it was so on
some rank and dense on none. Until then sparse gradients wait. Later ones that are otherwise are converted. A matrix
that no rank has reached may be an embedding that is used later: it counts as dense in this step, and is asked for again
in the next.

What is said is sent as soon as every parameter has a gradient, so that ranks may call step() of several optimizers in
different orders; where gradients are missing or sparse, step() of each is to be called in one order.

All ranks say it once in a step, or not at all: also a rank that gives the step up, which takes the answer in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from byteps.process_set import ProcessSet
from byteps.reduce_op import Sum
from byteps.torch.allreduce import start_allreduce
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.handle import Handle, synchronize

import torch


def _is(parameter: torch.Tensor, layout: torch.layout) -> int:
    return int(parameter.grad is not None and parameter.grad.layout is layout)


def empty_sparse(parameter: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of a parameter's shape that has no row."""
    return torch.sparse_coo_tensor(
        torch.empty((1, 0), dtype=torch.int64, device=parameter.device),
        torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device),
        parameter.shape,
        device=parameter.device,
        check_invariants=False,
    ).coalesce()


class GradientLayouts:
    """What is known. `enabled`: False: all are dense, and nothing is sent. `only_sparse`: else, all are sparse.

    Attributes:
        has_sparse: whether a parameter is known to be sparse.
    """

    def __init__(self, process_set: ProcessSet, enabled: bool, only_sparse: bool = False) -> None:
        self._process_set = process_set
        self._enabled = enabled
        self._only_sparse = only_sparse
        self._is_sparse: dict[torch.Tensor, bool] = {}
        self.has_sparse = enabled and only_sparse
        self._asked: list[torch.Tensor] = []
        self._has_asked = False  # in this step, if there was anything to ask
        self._answer: Handle | CollectiveHandle[torch.Tensor] | None = None

    def is_sparse(self, parameter: torch.Tensor) -> bool | None:
        """None: not known yet."""
        if not self._enabled:
            return False
        return True if self._only_sparse else self._is_sparse.get(parameter)

    def knows(self, count: int) -> bool:
        """Whether the layouts of so many parameters are known: of all of the optimizer's."""
        return not self._enabled or self._only_sparse or (self._answer is None and len(self._is_sparse) == count)

    @property
    def owes_answer(self) -> bool:
        """Whether a step that was given up has asked, and the answer has not been taken: ask() waits for it."""
        return self._answer is not None and not self._has_asked

    def end_step(self) -> None:
        """The step is over, or given up."""
        self._has_asked = False

    def ask(self, parameters: Iterable[torch.Tensor], names: Mapping[torch.Tensor, str]) -> None:
        """Starts to find out what is not known yet, unless this step has asked. All ranks call it with the same
        parameters, of the same names."""
        if self._has_asked:
            return
        self.settle()  # what a step has asked that was given up
        self._has_asked = True
        unknown = sorted((p for p in parameters if self.is_sparse(p) is None), key=lambda p: names[p])
        if not unknown:
            return
        # Sums, in which a rank that has joined counts nothing.
        layouts = [[_is(p, torch.sparse_coo), _is(p, torch.strided)] for p in unknown]
        found = torch.tensor(layouts, dtype=torch.int32, device="cpu")
        self._asked = unknown
        self._answer = start_allreduce(
            found, found, Sum, f"layouts of {names[unknown[0]]}", (1.0, 1.0), self._process_set, 1 << 62
        )

    def settle(self) -> None:
        """Waits for what was asked."""
        if self._answer is None:
            return
        try:
            found = synchronize(self._answer).tolist()
        except Exception:
            self._answer = None
            raise
        self._answer = None  # not behind a KeyboardInterrupt: it is still to come
        for parameter, (sparse, dense) in zip(self._asked, found):
            if sparse + dense > 0 or parameter.dim() != 2:  # the weight of an embedding is a matrix
                self._is_sparse[parameter] = sparse > 0 and dense == 0
                self.has_sparse |= self._is_sparse[parameter]
        self._asked = []
