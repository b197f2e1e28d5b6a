"""What the optimizers of all ranks must have in common before the state of one is sent to the others.

All ranks tell each other first, so an optimizer of another kind, or one whose state cannot be sent, is an error that
names the rank on all of them, and no rank waits for a tensor that never comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from byteps.objects import allgather_object
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.outline import compare
from byteps.torch.process_set import ProcessSet

import torch


def _own_class(optimizer: torch.optim.Optimizer) -> type:
    """The class that the user has chosen, also of a DistributedOptimizer."""
    return next(kind for kind in type(optimizer).__mro__ if not issubclass(kind, BaseOptimizer))


@dataclass(frozen=True)
class OptimizerOutline:
    """The kind of an optimizer, and its parameters.

    Attributes:
        kind: the name of its class, with the module.
        groups: the shapes of the parameters of each group.
        root_rank: whose state this rank asks for.
        refusal: why this rank cannot take part; "": it can.
    """

    kind: str
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    root_rank: int
    refusal: str = ""

    @staticmethod
    def of(optimizer: torch.optim.Optimizer, root_rank: int, refusal: str = "") -> OptimizerOutline:
        """That of an optimizer; with a refusal it may be anything."""
        kind = _own_class(optimizer)
        param_groups = getattr(optimizer, "param_groups", ())
        groups = tuple(tuple(tuple(one.shape) for one in group["params"]) for group in param_groups)
        return OptimizerOutline(f"{kind.__module__}.{kind.__qualname__}", groups, root_rank, refusal)

    def difference(self, other: OptimizerOutline) -> tuple[str, str] | None:
        """The first thing that is not the same in both, as each of them has it."""
        if self.kind != other.kind:
            return self.kind, other.kind
        if len(self.groups) != len(other.groups):
            return f"{len(self.groups)} parameter groups", f"{len(other.groups)} parameter groups"
        for index, (mine, theirs) in enumerate(zip(self.groups, other.groups)):
            place = f"in param_groups[{index}]"
            if len(mine) != len(theirs):
                return f"{len(mine)} parameters {place}", f"{len(theirs)} parameters {place}"
            for number, (one, another) in enumerate(zip(mine, theirs)):
                if one != another:
                    return f"shape {one} for parameter {number} {place}", f"shape {another} for it"
        if self.root_rank != other.root_rank:
            return f"root_rank={self.root_rank}", f"root_rank={other.root_rank}"
        return None


def agree(outline: OptimizerOutline, name: str, process_set: ProcessSet) -> None:
    """Compares the outlines of all ranks. Nothing else has been sent when it raises.

    Args:
        name: of the operation, the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        FailedPreconditionError: on all of them, if the outlines differ or one has a refusal.
    """
    outlines: list[OptimizerOutline] = allgather_object(outline, name, process_set)
    remedy = "Make the same optimizer, of the same parameters in the same order, on all ranks"
    compare(outlines, process_set, "broadcast_optimizer_state", "optimizers", remedy)
