"""byteps.hpp in jobs, and the example in C++."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from digits_runs import check_digits
from jobs import DEADLINE, launcher_command, output_of

CppProgram = Callable[[str], str]


@pytest.mark.parametrize("servers", [1, 0])
def test_job(cpp_program: CppProgram, servers: int) -> None:
    output = output_of([*launcher_command(2, servers), cpp_program("tests/frameworks/cpp/job.cc")])
    assert output.count("everything was right") == 2, output


@pytest.fixture(scope="module")
def digits(cpp_program: CppProgram) -> str:
    return cpp_program("examples/cpp/digits.cc")


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 0), (1, 0)])
def test_digits(digits: str, workers: int, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(__file__.split("/tests/")[0])
    check_digits([digits], workers, servers)


def test_a_wrong_file_is_said(digits: str) -> None:
    done = subprocess.run([digits, "1", "/nowhere"], check=False, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (1, "digits: cannot read /nowhere\n")
