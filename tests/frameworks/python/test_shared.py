"""What the modules of frameworks get from byteps: nothing that takes arrays of NumPy in place of their tensors."""

from __future__ import annotations

import importlib
import inspect

import byteps
import pytest
from byteps import shared

ARRAYS = ("byteps.array", "byteps.operation", "byteps.sparse")


def _home(value: object) -> str:
    return getattr(value, "__module__", "") if inspect.isroutine(value) or inspect.isclass(value) else ""


def test_nothing_of_arrays_is_shared() -> None:
    assert _home(byteps.push_pull).startswith(ARRAYS)
    assert _home(byteps.send).startswith(ARRAYS)
    for name in shared.__all__:
        assert not _home(getattr(shared, name)).startswith(ARRAYS), name


def test_the_package_has_what_is_shared() -> None:
    assert set(shared.__all__) <= set(byteps.__all__)
    for name in set(shared.__all__) - {"init", "join"}:  # whose frameworks take Horovod's arguments, too
        assert getattr(shared, name) == getattr(byteps, name), name


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "jax", "mxnet"])
def test_modules_of_frameworks(framework: str) -> None:
    pytest.importorskip(framework)
    module = importlib.import_module(f"byteps.{framework}")
    assert len(module.__all__) == len(set(module.__all__)), "a name twice"
    for name in module.__all__:
        assert not _home(getattr(module, name)).startswith(ARRAYS), name
    for name in shared.__all__:
        assert hasattr(module, name), name
