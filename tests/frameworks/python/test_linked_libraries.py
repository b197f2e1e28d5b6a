"""What the shared objects of the package are linked with: those of the frameworks with the C++ runtime alone, and none
with a library of a framework. So one wheel serves every version of every framework, and a process without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import byteps
import pytest
from jobs import clean_environment

_PACKAGE = Path(byteps.__file__).parent
_OBJECTS = sorted(path for path in _PACKAGE.rglob("*.so*") if path.is_file())
_SHIMS = sorted((_PACKAGE / "lib").glob("libbyteps_*.so"))

# What every Linux has that runs the frameworks.
_RUNTIME = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")
# What the frameworks' wheels bring along, and what only they would bring.
_FRAMEWORKS = re.compile(r"lib(tensorflow|tf|jax|xla|pjrt|mxnet|torch|c10|python|protobuf|cuda|cudart|nccl)\w*[.-]")


def _needed(path: Path) -> list[str]:
    """The libraries that the loader finds for it."""
    shown = subprocess.run(["readelf", "-d", str(path)], check=True, capture_output=True, text=True, timeout=60).stdout
    found = re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert found, shown
    return found


def _name(path: Path) -> str:
    return str(path.relative_to(_PACKAGE))


def test_the_frameworks_that_have_a_shared_object() -> None:
    assert [path.name for path in _SHIMS] == [f"libbyteps_{name}.so" for name in ("jax", "mxnet", "tensorflow")]


@pytest.mark.parametrize("path", _SHIMS, ids=_name)
def test_the_object_of_a_framework_needs_the_runtime_alone(path: Path) -> None:
    assert [name for name in _needed(path) if not _RUNTIME.fullmatch(name)] == []


@pytest.mark.parametrize("path", _OBJECTS, ids=_name)
def test_no_object_needs_a_library_of_a_framework(path: Path) -> None:
    assert [name for name in _needed(path) if _FRAMEWORKS.match(name)] == []


@pytest.mark.parametrize("path", _SHIMS, ids=_name)
def test_the_object_of_a_framework_loads_without_it(path: Path) -> None:
    """With all its symbols, in a process that has nothing but Python."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)", str(path)],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
