"""A Ray cluster on this machine whose nodes have addresses of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

_SUPPORT = pathlib.Path(__file__).resolve().parent
BODY = _SUPPORT.parent / "ray" / "ray_body.py"


def in_own_network(*words: str, seconds: float = 600) -> str:
    """A Ray cluster in a network namespace whose loopback has an address for each node; what the script prints."""
    if os.geteuid() != 0:
        pytest.skip("nodes with addresses of their own need root")
    addresses = " ".join(f"10.99.0.{number}" for number in range(1, 5))
    prepare = f'ip link set lo up; for a in {addresses}; do ip addr add $a/32 dev lo; done; exec "$@"'
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_", "RAY_"))}
    variables.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0", PYTHONDONTWRITEBYTECODE="1")
    variables["PYTHONPATH"] = f"{_SUPPORT}:{variables.get('PYTHONPATH', '')}"
    spaces = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    made = subprocess.run([*spaces, "ip", "link", "set", "lo", "up"], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no namespaces here: {made.stderr.strip()}")
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
