"""Two languages in one process: a host in Python with a session, and a library in Rust with another, at once."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from byteps.library import LIBRARY

_ROUNDS = 200


@pytest.fixture(scope="module")
def guest(cargo: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    """The path of the library."""
    done = cargo("tests/frameworks/rust/guest", "build", "--message-format=json-render-diagnostics")
    assert done.returncode == 0, done.stdout
    return re.findall(r'"filenames":\["([^"]+libguest\.so)"', done.stdout)[-1]


def _both(path: str) -> list[str]:
    byteps.init()
    rust = ctypes.CDLL(path)
    rust.guest_sums.restype = ctypes.c_double
    sums: list[float] = []
    thread = threading.Thread(target=lambda: sums.append(rust.guest_sums(_ROUNDS)))  # ctypes lets go of the lock
    thread.start()
    for number in range(_ROUNDS):
        result = byteps.push_pull(np.full(1000, float(number)), name="shared name", average=False)
        assert (result == 2.0 * number).all()
    thread.join()
    assert sums == [sum(2.0 * number + 1 for number in range(_ROUNDS))]
    byteps.barrier()
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if "libbyteps.so" in line})


@pytest.mark.parametrize("servers", [1, 0])
def test_python_and_rust(run_workers: Callable[..., Any], guest: str, servers: int) -> None:
    loaded = run_workers(_both, guest, servers=servers).results
    assert loaded == [[os.path.realpath(LIBRARY.path)]] * 2, "both use one copy of the library"
