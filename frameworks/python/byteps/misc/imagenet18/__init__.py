"""byteps.misc.imagenet18 of the original BytePS: training in float16 with weights kept in float32.

The model computes in float16, and its loss is multiplied by `loss_scale`. Its gradients are averaged as they are;
divided by the scale, they are the gradients of the float32 weights, which the optimizer updates. Copying these into the
model is the program's business, as it was there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from byteps.asynchronous import refuse_asynchronous
from byteps.basics import init, local_rank, local_size, rank, shutdown, size
from byteps.reduce_op import Average
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compression import Compression, Compressor
from byteps.torch.distributed_class import make_distributed
from byteps.torch.functions import broadcast_optimizer_state, broadcast_parameters
from byteps.torch.gradient_names import GradientNames
from byteps.torch.handle import poll, synchronize
from byteps.torch.ops import byteps_push_pull, declare, push_pull
from byteps.torch.optimizer import DistributedOptimizer as _DistributedOptimizer
from byteps.torch.reducer import Reducer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


class HalfPrecisionOptimizer(BaseOptimizer):
    """Reduces the gradients of float16 parameters, and gives them to float32 ones that the optimizer updates."""

    _pairs: list[tuple[torch.Tensor, torch.Tensor]]
    _loss_scale: float

    def synchronize(self) -> None:
        """Waits until the float32 parameters have the averages of the float16 gradients, divided by the scale."""
        super().synchronize()
        for half, full in self._pairs:
            if half.grad is None:
                continue
            if full.grad is None:
                full.grad = torch.empty_like(full)
            full.grad.copy_(half.grad).div_(self._loss_scale)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own; the float16 gradients, too: they become None where it does not say otherwise."""
        result = super().zero_grad(*args, **kwargs)
        set_to_none = self._sets_to_none(args, kwargs) is not False
        for half, _ in self._pairs:
            if half.grad is not None:
                half.grad = None if set_to_none else half.grad.zero_()
        return result


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    half: bool = False,
    model: torch.nn.Module | None = None,
    fp16_params: Iterable[torch.Tensor] | None = None,
    fp32_params: Iterable[torch.Tensor] | None = None,
    loss_scale: float = 1024,
) -> BaseOptimizer:
    """byteps.torch.DistributedOptimizer, and with `half` one for a model in float16.

    Args:
        optimizer: with `half`: over the float32 parameters; any class.
        named_parameters: of the optimizer's parameters.
        compression, backward_passes_per_step: as byteps.torch.DistributedOptimizer's.
        half: the model computes in float16.
        model: accepted for compatibility.
        fp16_params, fp32_params: with `half`: the model's parameters, and in the same order the optimizer's.
        loss_scale: what the program multiplies its loss by.

    Raises:
        ValueError: with `half`, the two lists are not given or not of one length and shape, or the scale is not
            positive; and what byteps.torch.DistributedOptimizer raises.
        UnimplementedError: with `half`, the job trains asynchronously.
    """
    del model
    if not half:
        return _DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step)
    if fp16_params is None or fp32_params is None:
        raise ValueError("half=True needs fp16_params and fp32_params")
    refuse_asynchronous("byteps.misc.imagenet18.DistributedOptimizer with half=True")
    pairs = list(zip(list(fp16_params), list(fp32_params)))
    full_of: dict[torch.Tensor, torch.Tensor] = {full: half_one for half_one, full in pairs}
    ours = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(full not in full_of or full_of[full].shape != full.shape for full in ours):
        raise ValueError(
            "fp16_params and fp32_params must pair each of the optimizer's parameters with one of its shape"
        )
    if not loss_scale > 0:
        raise ValueError(f"loss_scale is {loss_scale!r}; it must be positive")
    names = GradientNames(optimizer, named_parameters).of(full_of)
    extra: dict[str, Any] = {"_pairs": pairs, "_loss_scale": float(loss_scale)}
    reducer = Reducer(compression, backward_passes_per_step, Average, gradient_buffers=True)
    return make_distributed(optimizer, HalfPrecisionOptimizer, reducer, names, extra)
