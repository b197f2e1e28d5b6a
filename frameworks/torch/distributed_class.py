"""The class of a DistributedOptimizer: a subclass of the optimizer's own, made for it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from byteps.basics import info
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compiling import not_compiled
from byteps.torch.gradient_names import GradientNames
from byteps.torch.process_set import ProcessSet, global_process_set
from byteps.torch.reducer import Reducer

import torch


def is_distributed(process_set: ProcessSet) -> bool:
    """Whether gradients of this rank have to be reduced: alone, or outside of the set, there is nothing to wait for."""
    if process_set is not global_process_set:
        return bool(process_set.included()) and (process_set.size() or 1) > 1
    job = info()
    return job.size > 1 or job.num_servers > 0


def make_distributed(
    optimizer: torch.optim.Optimizer,
    ours: type[BaseOptimizer],
    reducer: Reducer,
    names: GradientNames,
    attributes: Mapping[str, Any] | None = None,
    process_set: ProcessSet = global_process_set,
    arguments: Mapping[str, Any] | None = None,
) -> BaseOptimizer:
    """An instance of a new class, named as the optimizer's: `ours` in front of it, with the optimizer's state.

    Args:
        reducer: of the gradients, which it gets here.
        names: of the gradients.
        attributes: what the instance has besides.
        process_set: the reducer's.
        arguments: what the instance shows of how it was made, unless the optimizer has attributes of these names.
    """
    own = {name: not_compiled(getattr(ours, name)) for name in ours.UNCOMPILED}
    subclass: Any = type(type(optimizer).__name__, (ours, type(optimizer)), own)
    distributed: BaseOptimizer = subclass.__new__(subclass)
    # Shares the state, the options and the hooks. A learning-rate scheduler wraps `step` of the instance it was made
    # for; that wrapper would hide ours.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed.__dict__.update(attributes or {})
    distributed.__dict__.setdefault("process_set", process_set)
    for name, value in (arguments or {}).items():
        distributed.__dict__.setdefault(name, value)  # Horovod's users read them; what the optimizer has itself stays
    distributed._is_distributed = is_distributed(process_set)
    distributed._synchronized = False
    distributed._should_synchronize = True
    distributed._unnamed = names.unnamed
    distributed._names = names.given
    distributed._reducer = reducer
    if distributed._is_distributed:
        for name, parameter in names.gradients:
            reducer.add(parameter, name)
        reducer.learn_order()
    weakref.finalize(distributed, reducer.close)
    return distributed
