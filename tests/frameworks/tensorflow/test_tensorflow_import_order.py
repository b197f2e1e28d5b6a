"""TensorFlow puts its protobuf into the scope of the whole process: it must not matter which is imported first. And
versions that cannot be used are refused by name."""

from __future__ import annotations

import pytest
from import_orders import ORDERS, import_error, import_warning, run_order
from installed import framework

framework("tensorflow")

_USE = """
total = bps.push_pull(tf.ones([100_000]), op=bps.Sum, name="x")
assert float(tf.reduce_min(total)) == float(tf.reduce_max(total)) == bps.size()
assert bps.broadcast_object({"step": 1}) == {"step": 1}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_order(order: str) -> None:
    run_order(order, "import tensorflow as tf", "import byteps.tensorflow as bps", _USE)


def test_a_version_that_is_too_old() -> None:
    text = import_error("import tensorflow as tf", "tf.__version__ = '2.12.1'", "import byteps.tensorflow")
    assert "needs TensorFlow 2.13 or newer; this is 2.12.1" in text


def test_a_version_that_is_newer_than_all_tested_ones() -> None:
    text = import_warning("import tensorflow as tf", "tf.__version__ = '2.99.0-rc1'", "import byteps.tensorflow")
    assert "RuntimeWarning: byteps.tensorflow has been tested with TensorFlow up to 2.21; this is 2.99.0-rc1" in text
    assert "has been tested with" not in import_warning("import tensorflow", "", "import byteps.tensorflow")
