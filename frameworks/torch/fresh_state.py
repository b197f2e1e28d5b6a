"""The state of an optimizer that has taken no step yet, as its first step would begin with.

Optimizers make their state in their first step. Horovod's and BytePS's broadcast_optimizer_state() takes a step with
gradients of zero to have it, and programs rely on what that leaves: gradients of zero, and a state that is not empty.
Here the parameters keep their values to the bit, and the optimizers of torch.optim go on as if they had taken no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from byteps.torch.dtypes import gradient_dtype

import torch


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sparse_parameters(model: torch.nn.Module | None) -> set[torch.Tensor]:
    """Those whose gradients are sparse."""
    if model is None:
        return set()
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {module.weight for module in model.modules() if isinstance(module, kinds) and module.sparse}


@contextmanager
def _without(groups: list[dict[str, Any]], names: Iterable[str]) -> Iterator[None]:
    """These options are zero meanwhile: what they do to a gradient of zero would stay in the state."""
    kept = [{name: group[name] for name in names if name in group} for group in groups]
    for group, options in zip(groups, kept):
        group.update(dict.fromkeys(options, 0.0))
    try:
        yield
    finally:
        for group, options in zip(groups, kept):
            group.update(options)


# What the first step of the optimizers of torch.optim begins with, where that is not what a step of zeros leaves.
_BEGINNING: dict[str, float] = {"step": 0.0, "mu_product": 1.0, "mu": 1.0, "ax": 0.0}


def _set(value: Any, number: float) -> Any:
    if isinstance(value, torch.Tensor):
        return value.fill_(number)
    return type(value)(number)


def _rewind(optimizer: torch.optim.Optimizer) -> None:
    """Takes back what the step has counted."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state:
                continue
            for name, number in _BEGINNING.items():
                if name in state:
                    state[name] = _set(state[name], number)
            if "eta" in state:  # of ASGD
                state["eta"] = _set(state["eta"], float(group["lr"]))
            if group.get("dampening") and state.get("momentum_buffer") is not None:
                # SGD dampens all gradients but the first, which it knows by the missing buffer.
                state["momentum_buffer"] = None


def _make_sparse(parameters: Iterable[torch.Tensor], sparse: set[torch.Tensor]) -> None:
    """Gives those of them that are in `sparse` sparse gradients, of the same values."""
    for parameter in parameters:
        if parameter in sparse and parameter.grad is not None and not parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_sparse(1)


def make_fresh_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> None:
    """Gives an optimizer without state the one that its first step begins with, and every parameter that wants one a
    gradient of zero. Does nothing to an optimizer that has state.

    Args:
        optimizer: a torch.optim.Optimizer. Of the classes of torch.optim the state is exact. Of others it is what a
            step of zeros leaves, in which a count of steps may stand at 1.
        model: whose embeddings with sparse gradients get sparse ones, unless a DistributedOptimizer has them dense
            (`sparse_as_dense`).
    """
    if optimizer.state_dict()["state"]:
        return
    sparse = set() if getattr(optimizer, "sparse_as_dense", False) else _sparse_parameters(model)
    wanted = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
    values = [parameter.detach().clone() for parameter in wanted]
    for parameter in wanted:
        parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter), requires_grad=False)
    own = next((cls for cls in type(optimizer).__mro__ if cls.__module__.startswith("torch.optim")), None)
    known = own is not None and own is not torch.optim.Optimizer
    # A DistributedOptimizer's own step would wait for the other ranks.
    step = getattr(optimizer, "own_step", optimizer.step)
    with _without(optimizer.param_groups, ["weight_decay"] if known else []):
        try:
            # Dense ones also for embeddings: a state made of sparse ones may be sparse, which cannot be broadcast.
            step()
        except Exception:
            if not sparse.intersection(wanted):
                raise
            optimizer.state.clear()
            _make_sparse(wanted, sparse)
            step()
        _make_sparse(wanted, sparse)
    with torch.no_grad():
        for parameter, value in zip(wanted, values):
            parameter.copy_(value)
    if known:
        _rewind(optimizer)
