"""Names, arguments and defaults of byteps.mxnet 0.2.5."""

from __future__ import annotations

from typing import Any

import pytest
from installed import framework
from signatures import REQUIRED, check

framework("mxnet")

import byteps.mxnet as bps

WANTED: dict[str, list[tuple[str, Any]] | None] = {
    "init": [("lazy", True)],
    **{name: [] for name in ("shutdown", "size", "local_size", "rank", "local_rank", "suspend")},
    "resume": [
        ("num_workers", REQUIRED),
        ("num_servers", REQUIRED),
        ("global_rank", REQUIRED),
        ("context", None),
    ],
    "byteps_push_pull": [
        ("tensor", REQUIRED),
        ("version", 0),
        ("priority", 0),
        ("name", None),
        ("is_average", True),
    ],
    "byteps_declare_tensor": [("name", REQUIRED)],
    "DistributedOptimizer": [("optimizer", REQUIRED)],
    "DistributedTrainer": [
        ("params", REQUIRED),
        ("optimizer", REQUIRED),
        ("optimizer_params", None),
        ("root_rank", 0),
        ("compression_params", None),
    ],
    "broadcast_parameters": [("params", REQUIRED), ("root_rank", 0)],
    "Compression": None,
}


@pytest.mark.parametrize("name", sorted(WANTED))
def test_names_and_arguments(name: str) -> None:
    check(getattr(bps, name), WANTED[name])


def test_everything_that_is_exported_is_there() -> None:
    assert len(set(bps.__all__)) == len(bps.__all__)
    assert all(hasattr(bps, name) for name in bps.__all__)
    assert bps.Compression.none is not bps.Compression.fp16
