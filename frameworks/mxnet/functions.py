"""Broadcast of parameters: every worker starts with the same."""

from __future__ import annotations

from typing import Any

from byteps.arguments import root
from byteps.mxnet.ops import broadcast_
from byteps.process_set import ProcessSet, global_process_set
from byteps.session import current_session

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter


def _arrays(name: str, params: Any) -> list[mx.nd.NDArray]:
    """The arrays of one parameter, one for each context."""
    if isinstance(params, mx.nd.NDArray):
        return [params]
    if isinstance(params, Parameter):
        return list(params.list_data())
    raise ValueError(f"{name} is {type(params).__name__}; it must be an NDArray or a Parameter of Gluon")


def _broadcast(name: str, arrays: list[mx.nd.NDArray], root_rank: int, process_set: ProcessSet) -> None:
    broadcast_(arrays[0], root_rank, name, process_set=process_set)
    for other in arrays[1:]:
        other[:] = arrays[0]


def _broadcast_when_initialized(name: str, parameter: Parameter, root_rank: int, process_set: ProcessSet) -> None:
    """As soon as the first forward pass has told the parameter its shape."""
    finish = parameter._finish_deferred_init

    def finish_and_broadcast() -> None:
        waited = parameter._deferred_init
        finish()
        if waited and not parameter._deferred_init:
            del parameter._finish_deferred_init  # the class's own again
            _broadcast(name, _arrays(name, parameter), root_rank, process_set)

    parameter._finish_deferred_init = finish_and_broadcast


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str = "parameter", process_set: ProcessSet = global_process_set
) -> None:
    """Copies the root's parameters to every rank, in place; asynchronous.

    Args:
        params: `net.collect_params()`, or a dict of names to NDArrays or Parameters: the same names on all ranks.
            Parameters whose shape is not known yet are sent when the first forward pass has told it.
        root_rank: whose values are sent.
        prefix: before the names.
        process_set: the ranks that take part; the root and this rank are among them.

    Raises:
        ValueError: before init(), the root is not a rank, or `params` holds something else.
    """
    root_rank = root(current_session(), root_rank)
    if not hasattr(params, "items"):
        raise ValueError(f"params is {type(params).__name__}; it must be a ParameterDict or a dict")
    for key, param in sorted(params.items(), key=lambda item: str(item[0])):
        name = f"{prefix}.{key}"
        try:
            _broadcast(name, _arrays(name, param), root_rank, process_set)
        except DeferredInitializationError:
            _broadcast_when_initialized(name, param, root_rank, process_set)
