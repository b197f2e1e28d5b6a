"""Names of operations: tensors meet by them across the workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from byteps.arguments import tensor_name
from byteps.session import current_session

import tensorflow as tf

# What differs between TensorFlow's versions, or says which output of an op a tensor is.
_OUTPUT = re.compile(r":\d+$")


def plain(name: str) -> str:
    """The name of a tensor or a variable without the number of the output."""
    return _OUTPUT.sub("", name)


def operation_name(kind: str, name: str | None, scope: str, tensor: Any) -> str:
    """The name of an operation on `tensor`: the one given; in a graph, that of the tensor, made unique in the graph; in
    eager execution a number, which needs the same order of unnamed calls on all ranks.

    Raises:
        ValueError: `name` cannot be one, or eager execution before init().
    """
    if name is not None:
        return scope + tensor_name(name)
    if tf.executing_eagerly():
        return f"{scope}{kind}.noname.{current_session().number(kind)}"
    graph = tf.compat.v1.get_default_graph()
    return f"{scope}{kind}." + graph.unique_name(plain(getattr(tensor, "name", None) or "tensor"))


def group_names(kind: str, name: str | None, scope: str, tensors: Sequence[Any]) -> list[str]:
    """A name for each tensor of a group: the group's and a number. A group without one is named by the shapes and
    dtypes of its tensors, so that a loop that sends the same group again and again uses the same names."""
    if name is None:
        if not tf.executing_eagerly():
            return [operation_name(kind, None, scope, tensor) for tensor in tensors]
        content = ",".join(f"{tensor.dtype.name}{tensor.shape}" for tensor in tensors)
        name = f"noname.{len(tensors)}.{crc32(content.encode()):08x}"
    else:
        name = tensor_name(name)
    return [f"{scope}{kind}.{name}.{index}" for index in range(len(tensors))]
