"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

from byteps.reduce_op import Sum
from byteps.session import current_session
from byteps.torch.allgather import allgather_async
from byteps.torch.allreduce import allreduce_
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set, known_process_set
from byteps.torch.submission import operation_name
from byteps.torch.wire_buffer import check_dense

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Numbers of the channels, to be multiplied with a tensor of (N, C, ...)."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _others(tensor: torch.Tensor) -> list[int]:
    """All dimensions but the channels'."""
    return [0, *range(2, tensor.dim())]


class _Normalize(torch.autograd.Function):
    """The normalization of (N, C, ...), without weight and bias, and the mean, variance and count of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, eps: float, name: str, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        channels = inputs.shape[1]
        wide = inputs.double()
        count = inputs.numel() // channels if channels else 0
        # An empty batch has no mean; it counts nothing.
        mean = wide.mean(_others(wide)) if count else wide.new_zeros(channels)
        squares = (wide - _per_channel(mean, wide)).square().sum(_others(wide))
        own = torch.cat([wide.new_tensor([count]), mean, squares]).unsqueeze(0)
        every = allgather_async(own, name, process_set).synchronize()

        counts, means, all_squares = every[:, :1], every[:, 1 : 1 + channels], every[:, 1 + channels :]
        total = counts.sum()
        if total <= 1:
            raise ValueError(
                f"SyncBatchNorm got {int(total)} value per channel from all ranks together; training needs more than 1"
            )
        mean = (counts * means).sum(0) / total
        variance = (all_squares + counts * (means - mean).square()).sum(0) / total
        inverse = torch.rsqrt(variance + eps)
        normal = (wide - _per_channel(mean, wide)) * _per_channel(inverse, wide)
        ctx.save_for_backward(normal, inverse, total)
        ctx.arguments = (f"{name}.gradient", process_set)
        result = normal.to(inputs.dtype)
        ctx.mark_non_differentiable(mean, variance, total)
        return result, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normal, inverse, total = ctx.saved_tensors
        name, process_set = ctx.arguments
        gradient = gradients[0].double()
        channels = normal.shape[1]
        sums = torch.cat([gradient.sum(_others(normal)), (gradient * normal).sum(_others(normal))])
        allreduce_(sums, name=name, op=Sum, process_set=process_set)
        mean = _per_channel(sums[:channels] / total, normal)
        along = _per_channel(sums[channels:] / total, normal)
        result = (gradient - mean - normal * along) * _per_channel(inverse, normal)
        return result.to(gradients[0].dtype), None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalization whose mean and variance are those of the batches of all ranks together, in training. It is
    for small batches per rank, on any device; evaluation is that of torch.nn.BatchNorm. Numbers are summed in float64.

    The gradients of weight and bias are those of this rank's batch: DistributedOptimizer or DistributedDataParallel
    averages them as it does all others. The modules of all ranks are called in the same order, and all ranks of the set
    take part in each pass, be it with an empty batch. A second derivative is not there.

    Args:
        num_features: channels C of the input (N, C, ...).
        eps, momentum, affine, track_running_stats: as torch.nn.BatchNorm1d's.
        process_set: the ranks whose batches count.

    Raises:
        ValueError: in forward(): an input of less than two dimensions or of other channels, sparse or on the device
            "meta"; before init(); one value per channel of all ranks together.
        BytePSError: in forward() and backward(): see byteps.torch.synchronize().
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, inputs: torch.Tensor) -> None:
        if inputs.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {inputs.dim()}D input)")
        if inputs.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got {inputs.shape[1]}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input, of its shape and dtype."""
        self._check_input_dim(input)
        batch = self.training or not self.track_running_stats
        if not batch:
            return self._alone(input, batch)
        current_session()  # before init() it must not pass for one that is alone
        process_set = known_process_set(self.process_set)  # a copy of the module has one of its own
        if (check_process_set(process_set).size() or 1) == 1:
            return self._alone(input, batch)
        check_dense(input)
        name = operation_name("sync_batch_norm", None, process_set)
        result, mean, variance, total = _Normalize.apply(input, self.eps, name, process_set)
        if self.training and self.track_running_stats:
            self._track(mean, variance * total / (total - 1))
        if self.weight is not None:
            result = result * _per_channel(self.weight, result) + _per_channel(self.bias, result)
        return result.to(input.dtype)

    def _alone(self, inputs: torch.Tensor, batch: bool) -> torch.Tensor:
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            factor = self._factor()
        return torch.nn.functional.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, batch, factor, self.eps
        )

    def _factor(self) -> float:
        """How much this batch counts for the running statistics."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        factor = self._factor()
        with torch.no_grad():
            for running, value in ((self.running_mean, mean), (self.running_var, variance)):
                assert running is not None
                running.lerp_(value.to(running.dtype), factor)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with each torch.nn.BatchNorm in it replaced by one of this class, with its parameters and buffers;
        the module itself, unless it is one. Call it before the optimizer is made."""
        if isinstance(module, _BatchNorm) and not isinstance(module, (cls, torch.nn.SyncBatchNorm)):
            made = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                setattr(made, name, value)
            made.training = module.training
            return made
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_set)
            if converted is not child:
                setattr(module, name, converted)
        return module
