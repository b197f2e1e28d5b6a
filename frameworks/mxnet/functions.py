"""Broadcast of parameters: every worker starts with the same."""

from __future__ import annotations

from collections.abc import Callable
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


class _FirstArrays:
    """In place of a parameter's `_init_impl`: what is to be sent when that first makes the arrays, since the first
    forward pass, or a file, has told the shape.

    Each broadcast that was asked for is sent, in that order, though the later ones change nothing: on a rank where the
    shape was known all of them are on their way.
    """

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._make = parameter._init_impl
        self._sends: list[Callable[[], None]] = []
        parameter._init_impl = self

    def add(self, send: Callable[[], None]) -> None:
        """To be called when the arrays are there."""
        self._sends.append(send)

    def __call__(self, *arguments: Any) -> None:
        if vars(self._parameter).get("_init_impl") is self:
            del self._parameter._init_impl  # the class's own again
        self._make(*arguments)
        sends, self._sends = self._sends, []
        with mx.autograd.pause():
            for send in sends:
                send()


def _broadcast_when_initialized(name: str, parameter: Parameter, root_rank: int, process_set: ProcessSet) -> None:
    """As soon as the parameter has arrays."""
    found = vars(parameter).get("_init_impl")
    first = found if isinstance(found, _FirstArrays) else _FirstArrays(parameter)
    first.add(lambda: _broadcast(name, _arrays(name, parameter), root_rank, process_set))


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str = "parameter", process_set: ProcessSet = global_process_set
) -> None:
    """Copies the root's parameters to every rank, in place; asynchronous.

    Args:
        params: `net.collect_params()`, or a dict of names to NDArrays or Parameters: the same names on all ranks.
            Parameters whose shape is not known yet are sent when the first forward pass, or a file that is loaded,
            has told it.
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
