"""The programs of frameworks/c and examples/c, built as the README of the former says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY
from jobs import DEADLINE

_CHECKOUT = Path(__file__).parents[3]
_WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror")


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """c_program("frameworks/c/trainer"): the path of the program."""
    folder = tmp_path_factory.mktemp("c")

    def build(name: str) -> str:
        compiler = shutil.which("cc")
        assert compiler is not None
        program = folder / Path(name).name
        library = Path(LIBRARY.path).resolve().parent
        source = _CHECKOUT / f"{name}.c"
        subprocess.run(
            [
                *(compiler, "-std=c11", *_WARNINGS, "-O2", f"-I{_CHECKOUT}", str(source), "-o", str(program)),
                *(f"-L{library}", "-lbyteps", "-lm", f"-Wl,-rpath,{library}"),
            ],
            check=True,
            timeout=DEADLINE,
        )
        return str(program)

    return build
