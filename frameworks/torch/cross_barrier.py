"""What BytePS's users know as cross_barrier: scripts that begin with `import byteps.torch.cross_barrier as bps` run.

New ones say DistributedOptimizer(overlap_forward=model), which this is, for nearly every optimizer.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from byteps.basics import init, local_rank, local_size, rank, shutdown, size
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compression import Compression, Compressor
from byteps.torch.functions import broadcast_optimizer_state, broadcast_parameters
from byteps.torch.optimizer import DistributedOptimizer

import torch

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def _step_and_zero(optimizer: BaseOptimizer, closure: Callable[[], Any] | None = None) -> Any:
    result = type(optimizer).step(optimizer, closure)
    optimizer.zero_grad(set_to_none=False)
    return result


def CrossBarrier(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> BaseOptimizer:
    """DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step, overlap_forward=model),
    with one thing more: as in BytePS, each gradient is zeroed behind its update. A call of zero_grad() does no harm.

    Args:
        model: the module whose forward pass waits for the updates.
        optimizer, named_parameters, compression, backward_passes_per_step: as DistributedOptimizer's.
        num_steps: accepted for compatibility. Any number of steps may be taken; nothing has to be stopped at the end.

    Raises:
        What DistributedOptimizer raises.
    """
    del num_steps
    distributed = DistributedOptimizer(
        optimizer, named_parameters, compression, backward_passes_per_step, overlap_forward=model
    )
    # A method, as learning-rate schedulers expect.
    distributed.step = types.MethodType(_step_and_zero, distributed)  # type: ignore[method-assign]
    return distributed
