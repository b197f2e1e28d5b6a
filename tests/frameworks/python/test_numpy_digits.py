"""The example with NumPy alone trains to the accuracy of the one in PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from digits_runs import check_digits

_EXAMPLE = Path(__file__).parents[3] / "examples" / "numpy" / "digits.py"


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 0), (1, 0)])
def test_digits(workers: int, servers: int) -> None:
    # Several workers share the cores of this host.
    check_digits(["env", "OPENBLAS_NUM_THREADS=1", sys.executable, str(_EXAMPLE)], workers, servers)


def test_a_wrong_file_is_said() -> None:
    done = subprocess.run(
        [sys.executable, _EXAMPLE, "1", "/dev/null"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "/dev/null has 0 bytes, no multiple of 65" in done.stderr
