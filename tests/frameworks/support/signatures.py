"""Are a function's arguments, and a module's errors, those that another library's users know?"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest

REQUIRED = inspect.Parameter.empty

# What all of Horovod's modules have.
BASICS: dict[str, list[tuple[str, Any]] | None] = {
    "init": [("comm", None), ("process_sets", None)],
    "shutdown": [],
    "is_initialized": [],
    "start_timeline": [("file_path", REQUIRED), ("mark_cycles", False)],
    "stop_timeline": [],
    **{name: [] for name in ("size", "local_size", "cross_size", "rank", "local_rank", "cross_rank")},
    **{
        name: []
        for name in (
            "mpi_threads_supported",
            "mpi_enabled",
            "mpi_built",
            "gloo_enabled",
            "gloo_built",
            "nccl_built",
            "ddl_built",
            "ccl_built",
            "cuda_built",
            "rocm_built",
            "is_homogeneous",
        )
    },
    **dict.fromkeys(("Average", "Sum", "Adasum", "Min", "Max", "Product"), None),
    "ProcessSet": None,
    "add_process_set": [("process_set", REQUIRED)],
    "remove_process_set": [("process_set", REQUIRED)],
    "global_process_set": None,
}


def check(function: Any, wanted: list[tuple[str, Any]] | None, by_name: bool = False) -> None:
    """Asserts that `function` has these arguments, by name and default, in this order unless `by_name`. It may have
    more behind them, with defaults, and take any (`*args`). None: anything will do."""
    if wanted is None:
        return
    ours = list(inspect.signature(function).parameters.values())
    for position, (name, default) in enumerate(wanted):
        parameter = next((one for one in ours if one.name == name), None)
        assert parameter is not None, f"{function} has no argument {name}"
        if not by_name:
            assert ours[position] is parameter, f"{name} is at another place in {function}"
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if default is REQUIRED:
            continue  # a default where there was none does no harm
        assert parameter.default == default, f"{name} of {function} is {parameter.default!r} by default"
    for parameter in ours:
        if parameter.name not in {name for name, _ in wanted}:
            takes_any = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            assert takes_any or parameter.default is not REQUIRED, parameter


def check_errors(module: ModuleType) -> None:
    """Asserts that a module which stands in for one of Horovod's raises errors of Horovod's types. To be called without
    a session: what asks for ranks is a ValueError then, as there."""
    exceptions = importlib.import_module("byteps.horovod.common.exceptions")
    for name in ("HorovodInternalError", "HostsUpdatedInterrupt"):
        assert issubclass(getattr(exceptions, name), RuntimeError)
        assert getattr(module, name, getattr(exceptions, name)) is getattr(exceptions, name)
    interrupt = exceptions.HostsUpdatedInterrupt
    assert interrupt().skip_sync is False and interrupt(skip_sync=True).skip_sync is True
    assert not issubclass(interrupt, exceptions.HorovodInternalError)
    assert not issubclass(exceptions.HorovodInternalError, interrupt)  # elastic functions tell them apart
    assert not module.is_initialized()
    queries = ["size", "rank", "local_size", "local_rank"]
    # byteps.mxnet and others in BytePS's words need not have these.
    queries += [name for name in ("cross_size", "cross_rank", "mpi_threads_supported") if hasattr(module, name)]
    for name in queries:
        with pytest.raises(ValueError, match="init"):
            getattr(module, name)()
    # What says how the library was built needs no session.
    for name in ("mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "cuda_built", "rocm_built"):
        assert int(getattr(module, name)()) == 0
