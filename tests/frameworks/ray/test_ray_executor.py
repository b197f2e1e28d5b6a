"""RayExecutor on a real Ray cluster of several nodes, each with an address of its own. test_ray.py has what runs by
default, test_ray_kill_matrix.py what happens when something dies."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from ray_network import in_own_network


@pytest.mark.parametrize(
    "case",
    [
        *("results", "spread", "servers", "gpus", "classes", "logs", "log_queue_dies", "current_group", "wrong"),
        *("worker_dies", "server_dies", "exceptions"),
    ],
)
def test_executor(case: str) -> None:
    in_own_network(case)
