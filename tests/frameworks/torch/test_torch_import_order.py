"""torch exports hundreds of symbols of its own protobuf and others: it must not matter which is imported first.
Nor must it matter which allocator the process has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jobs import launcher_command, output_of

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


def _run(code: str, in_a_job: bool, **variables: str) -> None:
    launcher = launcher_command(2, 1) if in_a_job else []
    output_of([*launcher, sys.executable, "-c", code], **variables)


@pytest.mark.parametrize("order", list(_ORDERS))
def test_order(order: str) -> None:
    _run(_ORDERS[order] + _USE, in_a_job="lived" not in order)


def test_without_what_came_after_pytorch_2_1() -> None:
    """The names that are asked for another way there; PyTorch itself has them again when byteps.torch is imported."""
    _run(
        """
import torch
import torch.utils._pytree

later = [(torch.compiler, "is_compiling"), (torch.utils._pytree, "tree_leaves")]
known = [getattr(*place) for place in later]
for place in later:
    delattr(*place)
import byteps.torch as bps
import byteps.torch.parallel

for place, value in zip(later, known):
    setattr(*place, value)
bps.init()
model = bps.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((3, 2), bps.rank() + 1.0)).sum().backward()
assert torch.equal(model.module.weight.grad, torch.full((1, 2), 4.5))
bps.shutdown()
""",
        in_a_job=True,
    )


@pytest.mark.parametrize("allocator", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_preloaded_allocator(allocator: str) -> None:
    found = [path for path in Path("/usr/lib").glob(f"*/{allocator}") if path.exists()]
    if not found:
        pytest.skip(f"{allocator} is not installed")
    _run(_ORDERS["torch first"] + _USE, in_a_job=True, LD_PRELOAD=str(found[0]))
