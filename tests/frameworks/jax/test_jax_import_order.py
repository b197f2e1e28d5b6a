"""It does not matter whether JAX or byteps is imported first; versions that cannot be used are refused by name."""

from __future__ import annotations

import pytest
from import_orders import ORDERS, import_error, import_warning, run_order
from installed import framework

framework("jax")

_USE = """
total = jax.jit(lambda x: bps.push_pull(x, average=False, name="x"))(jax.numpy.ones([100_000]))
assert float(total.min()) == float(total.max()) == bps.size()
"""


@pytest.mark.parametrize("order", ORDERS)
def test_order(order: str) -> None:
    run_order(order, "import jax", "import byteps.jax as bps", _USE)


def test_a_version_that_is_too_old() -> None:
    old = "jax.__version__, jax.__version_info__ = '0.4.30', (0, 4, 30)"
    assert "needs JAX 0.4.38 or newer (its typed FFI); this is 0.4.30" in import_error(
        "import jax", old, "import byteps.jax"
    )


def test_a_version_that_is_newer_than_all_tested_ones() -> None:
    new = "jax.__version__, jax.__version_info__ = '0.99.1.dev7', (0, 99, 1)"
    text = import_warning("import jax", new, "import byteps.jax")
    assert "RuntimeWarning: byteps.jax has been tested with JAX up to 0.10; this is 0.99.1.dev7" in text
    assert "has been tested with" not in import_warning("import jax", "", "import byteps.jax")
