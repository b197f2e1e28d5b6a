"""The example in C trains to the accuracy of the one in Python."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from digits_runs import check_digits

_DATA = Path(__file__).parents[3] / "examples" / "data" / "digits.bin"


@pytest.fixture(scope="module")
def digits(c_program: Callable[[str], str]) -> str:
    return c_program("examples/c/digits")


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (1, 0)])
def test_digits(digits: str, workers: int, servers: int) -> None:
    check_digits([digits, "30", str(_DATA)], workers, servers)


def test_a_wrong_file_is_said(digits: str) -> None:
    for file in ("/nowhere", "/dev/null"):
        done = subprocess.run([digits, "1", file], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr.endswith(f": {file}\n"), done.stderr
