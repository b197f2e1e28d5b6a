"""Making all workers start from the same state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from byteps.arguments import root
from byteps.basics import rank
from byteps.errors import FailedPreconditionError
from byteps.objects import allgather_object, broadcast_object
from byteps.session import current_session
from byteps.torch.broadcast import broadcast_async_
from byteps.torch.fresh_state import make_fresh_state
from byteps.torch.handle import wait_all
from byteps.torch.optimizer_outline import OptimizerOutline, agree
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.wire_buffer import check_dense, check_writable

import torch

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, str, bytes)):
        pairs = [item if isinstance(item, tuple) else (str(number), item) for number, item in enumerate(params)]
    else:
        raise ValueError(
            f"params is a {type(params).__name__}; it must be a dict such as model.state_dict(), or a list of "
            "(name, tensor) such as list(model.named_parameters())"
        )
    named = []
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"params has an entry of {len(pair)} items; each must be a (name, tensor)")
        name, tensor = pair
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"params has a {type(tensor).__name__} under {name!r}; only tensors are sent here, other values with "
                "broadcast_object"
            )
        named.append((str(name), tensor))
    if len({name for name, _ in named}) != len(named):
        raise ValueError("params has a name twice")
    return named


def check_sendable(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuses tensors that cannot be overwritten with another rank's. Raises ValueError, which names the tensor."""
    for name, tensor in named:
        try:
            check_dense(tensor)
            check_writable(tensor)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str = "Parameter.", process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites every rank's tensors with the root's.

    Args:
        params: a dict of tensors such as model.state_dict(), or an iterable of (name, tensor) such as
            model.named_parameters(). The same names, shapes and dtypes on all ranks. None is skipped.
        root_rank: whose values are sent.
        prefix: put before each name.
        process_set: the ranks that take part; the root and this rank are among them.

    Raises:
        ValueError: `params` is something else or has a tensor that cannot be sent, or before init().
        BytePSError: see byteps.torch.synchronize().
    """
    named = _named_tensors(params)
    check_sendable(named)  # before any of them is on its way
    wait_all([broadcast_async_(tensor, root_rank, prefix + name, process_set) for name, tensor in named])


class _Placeholder:
    """Stands for a tensor in a pickled state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="cpu")


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with its tensors replaced by placeholders; the tensors, in order, go to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Placeholder(value)
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors) for item in value)
    return value


def _put_in(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with its placeholders replaced by new tensors, which, in the same order, go to `tensors`."""
    if isinstance(value, _Placeholder):
        tensors.append(value.empty())
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors) for item in value)
    return value


def _keep_dtypes(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Gives back their dtypes to the tensors of a state that was loaded: torch.optim.Optimizer makes them those of the
    parameters (float32 moments of bfloat16 parameters, say), which the root, who loads nothing, does not."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    loaded = getattr(optimizer, "state", {})  # a wrapper may have none
    for parameter, number in zip(parameters, numbers):
        if number in state["state"] and parameter in loaded:
            loaded[parameter] = _with_dtypes(loaded[parameter], state["state"][number])


def _with_dtypes(loaded: Any, sent: Any) -> Any:
    """What was loaded, with the tensors of what was sent wherever the dtypes differ."""
    if isinstance(loaded, torch.Tensor) and isinstance(sent, torch.Tensor):
        return loaded if loaded.dtype == sent.dtype else sent.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(sent, dict):
        for key, value in sent.items():
            if key in loaded:
                loaded[key] = _with_dtypes(loaded[key], value)
    elif isinstance(loaded, (list, tuple)) and isinstance(sent, (list, tuple)) and len(loaded) == len(sent):
        return type(loaded)(map(_with_dtypes, loaded, sent))
    return loaded


def _state_to_send(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, tensors: list[torch.Tensor], is_root: bool
) -> Any:
    """Makes state where there is none. On the root the state without its tensors, which go to `tensors`. Raises
    TypeError, ValueError for what cannot be sent."""
    # Wrappers of optimizers, too, which need not be of a class derived from it.
    if not all(hasattr(optimizer, name) for name in ("state_dict", "load_state_dict", "param_groups")):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    make_fresh_state(optimizer, model)
    if not is_root:
        return None
    skeleton = _take_out(optimizer.state_dict(), tensors)
    for index, tensor in enumerate(tensors):
        try:
            check_dense(tensor)
        except ValueError as error:
            raise ValueError(f"tensor {index} of the optimizer's state: {error}") from None
    return skeleton


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    prefix: str = "Parameter.",
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites every rank's optimizer state and options (learning rate, momentum, step counts) with the root's.

    The others need no state yet: what the root has is created there. Where there is none at all it is made first, by a
    step with gradients of zero, which the parameters then have; it changes no parameter, and training goes on from
    there as from an optimizer that has taken no step (fresh_state.py).

    Args:
        optimizer: a torch.optim.Optimizer or a DistributedOptimizer, with the same parameters on all ranks.
        root_rank: whose state is sent.
        prefix: put before the names of the state's tensors.
        model: the model with the optimizer's parameters, for optimizers of sparse gradients: its embeddings say which
            are sparse. As in Horovod it may be the third argument.
        process_set: the ranks that take part; the root and this rank are among them.

    Raises:
        ValueError: before init(), a root that the job does not have, a process set that it does not know; or this
            rank's optimizer is torch.optim.LBFGS, whose state belongs to one rank's history, or has tensors that cannot
            be sent.
        FailedPreconditionError: on all ranks, before any state is sent: the optimizers are of different classes, have
            other groups or parameters of other shapes, the ranks ask for different roots, or a rank named in it cannot
            take part.
        TypeError: `optimizer` is something else.
        BytePSError: see byteps.torch.synchronize().
    """
    if isinstance(prefix, torch.nn.Module):
        prefix, model = "Parameter.", prefix
    check_process_set(process_set)
    root_rank = root(current_session(), root_rank)
    is_root = rank() == root_rank
    tensors: list[torch.Tensor] = []
    skeleton = None
    # What is wrong on one rank is an error of all: the others must not wait for it.
    refused: Exception | None = None
    try:
        skeleton = _state_to_send(optimizer, model, tensors, is_root)
    except Exception as error:  # raised below
        refused = error
    try:
        agree(
            OptimizerOutline.of(optimizer, root_rank, "" if refused is None else f"{refused!r}"),
            f"{prefix}optimizer",
            process_set,
        )
    except FailedPreconditionError:
        if refused is not None:
            raise refused from None
        raise
    skeleton = broadcast_object(skeleton, root_rank, f"{prefix}optimizer", process_set)
    state = None
    if not is_root:
        state = _put_in(skeleton, tensors)
    wait_all(
        [
            broadcast_async_(tensor, root_rank, f"{prefix}optimizer.{index}", process_set)
            for index, tensor in enumerate(tensors)
        ]
    )
    if state is not None:
        optimizer.load_state_dict(state)
        _keep_dtypes(optimizer, state)
