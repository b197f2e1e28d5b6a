"""Engine threads of the servers of a job on one host."""

from __future__ import annotations

import os

import pytest

from launcher.environment import Environment
from launcher.lanes import lanes


@pytest.mark.parametrize(
    ("cores", "servers", "variables", "expected"),
    [
        (1, 1, {}, None),
        (2, 1, {}, 2),
        (2, 2, {}, None),
        (3, 1, {}, 3),
        (4, 1, {}, 4),
        (8, 1, {}, None),
        (64, 3, {}, None),
        (2, 1, {"BYTEPS_SHM": "0"}, None),
        (2, 1, {"BYTEPS_SERVER_ENGINE_THREAD": "1"}, None),
    ],
)
def test_lanes(
    monkeypatch: pytest.MonkeyPatch, cores: int, servers: int, variables: dict[str, str], expected: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert lanes(servers, Environment(variables)) == expected
