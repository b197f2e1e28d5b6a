"""Stands in for horovod.tensorflow.functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from byteps.process_set import ProcessSet, global_process_set
from byteps.tensorflow.allreduce import broadcast_
from byteps.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from byteps.tensorflow.variables import broadcast_variables as _broadcast_variables


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """byteps.tensorflow.broadcast_variables. `inplace` is accepted for compatibility."""
    return _broadcast_variables(variables, root_rank, inplace=inplace, process_set=process_set)


__all__ = ["allgather_object", "broadcast_", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
