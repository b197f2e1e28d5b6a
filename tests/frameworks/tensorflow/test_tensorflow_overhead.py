"""What an operation adds to the identity is measured with the tool that docs/frameworks/tensorflow.md names."""

from __future__ import annotations

import pytest
from installed import framework

framework("tensorflow")

from overheads import check_overhead


@pytest.mark.parametrize("workers", [1, 2])
def test_overhead_is_measured(workers: int) -> None:
    check_overhead("tensorflow", workers)
