"""RayExecutor on a real Ray cluster of several nodes, each with an address of its own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="ray is not installed")

BODY = pathlib.Path(__file__).with_name("ray_body.py")


def in_own_network(*words: str, seconds: float = 300) -> str:
    """A Ray cluster in a network namespace whose loopback has an address for each node; what the script prints."""
    if os.geteuid() != 0:
        pytest.skip("nodes with addresses of their own need root")
    addresses = " ".join(f"10.99.0.{number}" for number in range(1, 5))
    prepare = f'ip link set lo up; for a in {addresses}; do ip addr add $a/32 dev lo; done; exec "$@"'
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_", "RAY_"))}
    variables.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0", PYTHONDONTWRITEBYTECODE="1")
    support = str(pathlib.Path(__file__).resolve().parents[1] / "support")
    variables["PYTHONPATH"] = f"{support}:{variables.get('PYTHONPATH', '')}"
    spaces = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    process = subprocess.Popen(
        [*spaces, "sh", "-c", prepare, "sh", sys.executable, str(BODY), *words],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = process.communicate(timeout=seconds)[0]
    finally:
        process.send_signal(signal.SIGKILL)  # and with it the whole namespace
        process.wait()
    assert process.returncode == 0 and "ALL WELL" in output, output
    return output


@pytest.mark.parametrize(
    "case",
    [
        *("results", "spread", "servers", "classes", "current_group", "wrong"),
        *("worker_dies", "server_dies", "coordinator_dies", "node_dies", "driver_dies", "exceptions"),
    ],
)
def test_executor(case: str) -> None:
    in_own_network(case)


def test_train() -> None:
    pytest.importorskip("pyarrow", reason="Ray Train is not installed: ray[train]")
    pytest.importorskip("torch", reason="torch is not installed")
    in_own_network("train")
