"""Stands in for horovod.mxnet: the same names and arguments, carried by BytePS.

import byteps.horovod.mxnet as hvd
"""

from __future__ import annotations

from typing import Any

from byteps.arguments import check_groups
from byteps.horovod.mxnet.compression import Compression
from byteps.horovod.mxnet.functions import *  # noqa: F403
from byteps.horovod.mxnet.functions import __all__ as _FUNCTIONS
from byteps.horovod.mxnet.mpi_ops import *  # noqa: F403
from byteps.horovod.mxnet.mpi_ops import __all__ as _OPERATIONS
from byteps.mxnet.functions import broadcast_parameters as _broadcast_parameters
from byteps.mxnet.optimizer import DistributedOptimizer as _Optimizer
from byteps.mxnet.trainer import DistributedTrainer as _Trainer
from byteps.process_set import ProcessSet, global_process_set
from byteps.shared import __version__


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """byteps.mxnet.broadcast_parameters."""
    _broadcast_parameters(params, root_rank, "parameter" if prefix is None else f"{prefix}parameter")


class DistributedOptimizer(_Optimizer):
    """byteps.mxnet.DistributedOptimizer. `num_groups` is checked and changes nothing: each gradient
    travels when it is there."""

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_groups(num_groups)
        super().__init__(optimizer, gradient_predivide_factor=gradient_predivide_factor, process_set=process_set)


class DistributedTrainer(_Trainer):
    """byteps.mxnet.DistributedTrainer. `num_groups` is checked and changes nothing: each gradient
    travels when it is there."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_groups(num_groups)
        super().__init__(
            params,
            optimizer,
            optimizer_params,
            root_rank=(process_set.ranks or [0])[0],
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            prefix=prefix,
            process_set=process_set,
        )


__all__ = [
    *_OPERATIONS,
    *_FUNCTIONS,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "__version__",
    "broadcast_parameters",
]
