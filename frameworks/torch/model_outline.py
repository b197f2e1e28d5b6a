"""What the models of all ranks must have in common before they are wrapped (parallel/).

All ranks tell each other first, so a model of other parameters is an error that names parameter and rank on all of
them, and no rank waits for a tensor that never comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from byteps.objects import allgather_object
from byteps.torch.dtypes import gradient_dtype
from byteps.torch.outline import compare
from byteps.torch.process_set import ProcessSet

import torch


def _of(tensor: torch.Tensor) -> str:
    """What counts of a parameter or buffer."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.requires_grad and gradient_dtype(tensor) != tensor.dtype:
        kind += f" with gradients of {str(gradient_dtype(tensor)).removeprefix('torch.')}"
    return f"shape {tuple(tensor.shape)}, {kind}, requires_grad={tensor.requires_grad}"


@dataclass(frozen=True)
class ModelOutline:
    """The tensors of a model, and how it is wrapped.

    Attributes:
        tensors: what counts of each parameter and of each buffer that is shared, by name.
        options: the arguments that are to be the same on all ranks.
        refusal: why this rank cannot take part; "": it can.
    """

    tensors: Mapping[str, str]
    options: Mapping[str, str]
    refusal: str = ""

    @staticmethod
    def of(
        tensors: Iterable[tuple[str, torch.Tensor]], options: Mapping[str, object], refusal: str = ""
    ) -> ModelOutline:
        """That of a model. With a refusal it has no tensors, which may be anything."""
        outlines = {} if refusal else {name: _of(tensor) for name, tensor in tensors}
        return ModelOutline(outlines, {name: repr(value) for name, value in options.items()}, refusal)

    def digest(self) -> bytes:
        """Equal for outlines that are equal."""
        parts = (sorted(self.tensors.items()), sorted(self.options.items()), self.refusal)
        return hashlib.sha256(repr(parts).encode()).digest()

    def difference(self, other: ModelOutline) -> tuple[str, str] | None:
        """The first thing that is not the same in both, as each of them has it."""
        for name in (*self.options, *other.options):
            mine, theirs = self.options.get(name), other.options.get(name)
            if mine != theirs:
                return f"{name}={mine}", f"{name}={theirs}"
        for name in (*self.tensors, *other.tensors):
            one, another = self.tensors.get(name), other.tensors.get(name)
            if one != another:
                return _named(name, one), _named(name, another)
        return None


def _named(name: str, outline: str | None) -> str:
    return f"no {name}" if outline is None else f"{name} ({outline})"


def agree(outline: ModelOutline, name: str, process_set: ProcessSet) -> None:
    """Compares the outlines of all ranks. Nothing else has been sent when it raises.

    Args:
        name: of the operation, the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        FailedPreconditionError: on all of them, if the outlines differ or one has a refusal.
    """
    digests = allgather_object(outline.digest(), name, process_set)
    # Nearly always that is all: outlines of large models, times the ranks, are much.
    if not outline.refusal and len(set(digests)) == 1:
        return
    outlines: list[ModelOutline] = allgather_object(outline, f"{name}.whole", process_set)
    remedy = "Make the same model, and wrap it with the same arguments, on all ranks"
    compare(outlines, process_set, "DistributedDataParallel", "models", remedy)
