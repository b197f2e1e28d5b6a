"""It does not matter whether MXNet or byteps is imported first; versions that cannot be used are refused by name."""

from __future__ import annotations

import pytest
from import_orders import ORDERS, import_error, run_order
from installed import framework

framework("mxnet")

_USE = """
total = bps.push_pull(mx.nd.ones((100_000,)), average=False, name="x").asnumpy()
assert total.min() == total.max() == bps.size()
"""


@pytest.mark.parametrize("order", ORDERS)
def test_order(order: str) -> None:
    run_order(order, "import mxnet as mx", "import byteps.mxnet as bps", _USE)


def test_a_version_that_cannot_be_used() -> None:
    text = import_error("import mxnet as mx", "mx.__version__ = '2.0.0'", "import byteps.mxnet")
    assert "works with MXNet 1.9; this is 2.0.0" in text
