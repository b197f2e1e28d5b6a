"""Names of operations: tensors meet by them across the workers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from byteps.arguments import tensor_name
from byteps.process_set import ProcessSet, global_process_set
from byteps.session import current_session

import tensorflow as tf

# Which output of an op a tensor is.
_OUTPUT = re.compile(r":\d+$")


# How often a name was asked for in a graph.
_ASKED: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def unique_in_graph(name: str) -> str:
    """The name, with a number if it stands in the graph already: of two operations that are traced in the same order on
    all ranks. In eager execution the name."""
    if tf.executing_eagerly():
        return name
    asked = _ASKED.setdefault(tf.compat.v1.get_default_graph(), Counter())
    asked[name] += 1
    return name if asked[name] == 1 else f"{name}.{asked[name]}"


def operation_name(
    kind: str, name: str | None, scope: str, tensor: Any, process_set: ProcessSet = global_process_set
) -> str:
    """The name of an operation on `tensor`: the one given; in a graph, that of the tensor, made unique in the graph; in
    eager execution a number, which needs the same order of unnamed calls on all ranks.

    Raises:
        ValueError: `name` cannot be one, or eager execution before init().
    """
    if name is not None:
        return tensor_name(scope + tensor_name(name))
    if tf.executing_eagerly():
        return f"{scope}{kind}.noname.{current_session().number(kind, process_set.key())}"
    return unique_in_graph(f"{scope}{kind}." + _OUTPUT.sub("", getattr(tensor, "name", None) or "tensor"))


def group_names(
    kind: str, name: str | None, scope: str, tensors: Sequence[Any], process_set: ProcessSet = global_process_set
) -> list[str]:
    """A name for each tensor of a group: the group's and a number. A group without one is named by the shapes and
    dtypes of its tensors, so that a loop that sends the same group again and again uses the same names."""
    if name is None:
        if not tf.executing_eagerly():
            return [operation_name(kind, None, scope, tensor, process_set) for tensor in tensors]
        content = ",".join(f"{tensor.dtype.name}{tensor.shape}" for tensor in tensors)
        name = f"noname.{len(tensors)}.{crc32(content.encode()):08x}"
    else:
        name = tensor_name(name)
    return [f"{scope}{kind}.{name}.{index}" for index in range(len(tensors))]
