"""Programs in C++, built as a user does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY
from jobs import DEADLINE

_CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def cpp_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """cpp_program("examples/cpp/digits.cc"): the path of the program. Its build warns of nothing."""
    folder = tmp_path_factory.mktemp("cpp")

    def build(source: str) -> str:
        compiler = shutil.which("c++")
        assert compiler is not None
        program = folder / Path(source).stem
        library = Path(LIBRARY.path).resolve().parent
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-Wno-missing-field-initializers"]
        if source.startswith("examples/"):
            warnings.pop()
        subprocess.run(
            [
                *(compiler, "-std=c++20", *warnings, "-O2", f"-I{_CHECKOUT}", str(_CHECKOUT / source)),
                *("-o", str(program), f"-L{library}", "-lbyteps", f"-Wl,-rpath,{library}", "-pthread"),
            ],
            check=True,
            timeout=DEADLINE,
        )
        return str(program)

    return build
