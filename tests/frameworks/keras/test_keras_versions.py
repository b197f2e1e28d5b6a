"""Which versions of Keras are refused, and of which byteps.keras warns."""

from __future__ import annotations

import pytest
from import_orders import import_error, import_warning
from installed import framework

keras = framework("keras")


def test_a_version_that_is_too_old() -> None:
    text = import_error("import keras", "keras.__version__ = '2.12.0'", "import byteps.keras")
    assert "byteps.keras needs Keras 2.13 or newer; this is 2.12.0" in text


@pytest.mark.skipif(keras.__version__.startswith("2."), reason="Keras 2 would be taken for Keras 3")
def test_a_version_that_is_newer_than_all_tested_ones() -> None:
    text = import_warning("import keras", "keras.__version__ = '4.1.0'", "import byteps.keras")
    assert text.count("RuntimeWarning: byteps.keras has been tested with Keras up to 3.15; this is 4.1.0") == 1
    assert "has been tested with" not in import_warning("import keras", "", "import byteps.keras")


def test_tf_keras_has_versions_of_its_own() -> None:
    pytest.importorskip("tf_keras")
    use = "import byteps.keras\nbyteps.keras.flavor.keras_of(tf_keras.optimizers.SGD())"
    text = import_warning("import tf_keras", "tf_keras.__version__ = '2.99.0'", use)
    assert "RuntimeWarning: byteps.keras has been tested with tf_keras up to 2.21; this is 2.99.0" in text
