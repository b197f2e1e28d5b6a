"""Names of operations: tensors meet by them across the workers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from byteps.arguments import tensor_name
from byteps.process_set import ProcessSet, global_process_set
from byteps.session import current_session

import tensorflow as tf

# "sync_batch_normalization_1_1/Reshape_2:0": the second layer that this process has made without a name, called for the
# second time. The number behind the last slash is the graph's, and stays; that of the output does not.
_NUMBERS = re.compile(r"(_\d+)+(?=/)|:\d+$")

# "917": the placeholder of an eager tensor that a function captures is called by a number of this process's.
_CAPTURED = re.compile(r"(?<![^/])\d+(_\d+)?$")

# A branch, or a gradient of one: "cond_1_true_12", "cond_1_true_12_grad_30".
_BRANCH = re.compile(r"(.*)_(true|false|branch\d+)_\d+((?:_grad_\d+|_rewritten)*)")


@dataclass
class _Counts:
    """Of a graph: how often each name was asked for in it; and what its branches and loops were given of it."""

    asked: Counter[str] = field(default_factory=Counter)
    construct: tuple[str, int] | None = None  # of a branch or loop: which one of the graph around it
    made: Counter[str] = field(default_factory=Counter)
    given: dict[tuple[tuple[str, int], str], list[int]] = field(default_factory=dict)
    number: int = field(default_factory=partial(next, itertools.count(1)))  # of the graph, in this process


_COUNTS: WeakKeyDictionary[Any, _Counts] = WeakKeyDictionary()


def _number_in(graph: Any, name: str) -> int:
    """1 for the first operation of this name that is traced in the graph, 2 for the second, and so on.

    Branches and loops count together with the function that they stand in, since two of them may run at once. Of the
    branches of one tf.cond or tf.switch_case one runs: they have the same numbers, so that ranks that take different
    ones meet under the names that both have.
    """
    counts = _COUNTS.setdefault(graph, _Counts())
    counts.asked[name] += 1
    number = counts.asked[name]
    if not getattr(graph, "is_control_flow_graph", False):
        return number
    around = _COUNTS.setdefault(graph.outer_graph, _Counts())
    if counts.construct is None:
        counts.construct = _construct(graph.name, around)
    given = around.given.setdefault((counts.construct, name), [])
    if number > len(given):
        given.append(_number_in(graph.outer_graph, name))
    return given[number - 1]


def _construct(graph_name: str, around: _Counts) -> tuple[str, int]:
    """Which tf.cond, tf.switch_case or loop this graph is of, and which gradient of it."""
    match = _BRANCH.fullmatch(graph_name)
    if match is None:
        construct = branch = graph_name
    else:
        construct = f"{match[1]} {match[3].count('_grad_')}"
        branch = f"{construct} {match[2]}"
    around.made[branch] += 1
    return construct, around.made[branch]


def unique_in_graph(name: str) -> str:
    """The name, with a number if it stands in the graph already: of two operations that are traced in the same order on
    all ranks. In eager execution the name."""
    if tf.executing_eagerly():
        return name
    number = _number_in(tf.compat.v1.get_default_graph(), name)
    return name if number == 1 else f"{name}.{number}"


def graph_number() -> int:
    """Which graph is being traced; 0: none. Graphs of the same function have numbers of their own."""
    if tf.executing_eagerly():
        return 0
    counts = _COUNTS.setdefault(tf.compat.v1.get_default_graph(), _Counts())
    return counts.number


def step_group(names: Sequence[str], *of: Any) -> str:
    """What operations that a graph runs in each of its steps are called together, so that a rank on which a step ends
    half-way leaves none of their rounds out (native/step_group.h). Empty, for none: in eager execution, where each
    operation is a step, and for a single one. `of`: what tells them from others of these names."""
    if tf.executing_eagerly() or len(names) < 2:
        return ""
    return f"{names[0]}.{len(names)}.{crc32(repr((list(names), of)).encode()):08x}"


def check_scope(scope: Any) -> str:
    """The argument `scope`. Raises TypeError for what is none: it stands where other functions have `average`."""
    if not isinstance(scope, str):
        raise TypeError(
            f"scope is {scope!r}; it must be a string, which is put before the name. Give what else is meant by its "
            "name, such as average=False"
        )
    return scope


def operation_name(
    kind: str, name: str | None, scope: str, tensor: Any, process_set: ProcessSet = global_process_set
) -> str:
    """The name of an operation on `tensor`: the one given; in a graph, that of the tensor, without the numbers of
    layers, made unique in the graph; in eager execution a number, which needs the same order of unnamed calls on all
    ranks.

    Raises:
        ValueError: `name` cannot be one, or eager execution before init().
        TypeError: `scope` is no string.
    """
    check_scope(scope)
    if name is not None:
        return tensor_name(scope + tensor_name(name))
    if tf.executing_eagerly():
        return f"{scope}{kind}.noname.{current_session().number(kind, process_set.key())}"
    called = _NUMBERS.sub("", getattr(tensor, "name", None) or "tensor")
    return unique_in_graph(f"{scope}{kind}." + _CAPTURED.sub("captured", called))


def group_names(
    kind: str, name: str | None, scope: str, tensors: Sequence[Any], process_set: ProcessSet = global_process_set
) -> list[str]:
    """A name for each tensor of a group: the group's and a number. A group without one is named by the shapes and
    dtypes of its tensors, so that a loop that sends the same group again and again uses the same names; without their
    numbers of rows where ranks may have different ones.

    Raises:
        ValueError: `name` cannot be one.
        TypeError: `scope` is no string.
    """
    check_scope(scope)
    if name is None:
        if not tf.executing_eagerly():
            return [operation_name(kind, None, scope, tensor, process_set) for tensor in tensors]
        first = 1 if kind == "allgather" else 0
        content = ",".join(f"{tensor.dtype.name}{tensor.shape[first:]}" for tensor in tensors)
        name = f"noname.{len(tensors)}.{crc32(content.encode()):08x}"
    else:
        name = tensor_name(name)
    return [f"{scope}{kind}.{name}.{index}" for index in range(len(tensors))]
