"""torch exports hundreds of symbols of its own protobuf and others: it must not matter which is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from jobs import DEADLINE, clean_environment

pytest.importorskip("torch")

_USE = """
bps.init()
total = bps.push_pull(torch.ones(100_000), average=False, name="x")
assert torch.equal(total, torch.full((100_000,), float(bps.size())))
bps.shutdown()
"""

_ORDERS = {
    "torch first": "import torch\nimport byteps\nimport byteps.torch as bps",
    "byteps first": "import byteps\nbyteps.init()\nimport torch\nimport byteps.torch as bps",
    "byteps lived before": "import byteps\nbyteps.init()\nbyteps.shutdown()\nimport torch\nimport byteps.torch as bps",
}


@pytest.mark.parametrize("order", list(_ORDERS))
def test_in_a_job(order: str) -> None:
    code = _ORDERS[order] + _USE
    if "lived" in order:
        launcher = []
    else:
        launcher = [sys.executable, "-m", "byteps.launcher", "--workers", "2", "--servers", "1", "--"]
    done = subprocess.run(
        [*launcher, sys.executable, "-c", code],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
