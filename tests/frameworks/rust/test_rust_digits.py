"""The example in Rust trains to the accuracy of the one in Python."""

from __future__ import annotations

import subprocess

import pytest
from digits_runs import check_digits
from jobs import DEADLINE


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 0), (1, 0)])
def test_digits(digits: str, workers: int, servers: int) -> None:
    check_digits([digits], workers, servers)


def test_a_wrong_file_is_said(digits: str) -> None:
    done = subprocess.run([digits, "1", "/nowhere"], check=False, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode != 0
    assert "cannot read /nowhere" in done.stderr
