"""The example in Julia trains to the accuracy of the one in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from digits_runs import check_digits

_EXAMPLE = Path(__file__).parents[3] / "examples" / "julia" / "digits.jl"


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (1, 0)])
def test_digits(julia_command: list[str], julia_environment: dict[str, str], workers: int, servers: int) -> None:
    environment = [f"{name}={value}" for name, value in julia_environment.items()]
    check_digits(["env", *environment, *julia_command, str(_EXAMPLE)], workers, servers)
