"""The file of digits is what scikit-learn ships, in the order that examples/torch/digits.py splits by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

_FILE = Path(__file__).parents[2] / "examples" / "data" / "digits.bin"


def _records() -> np.ndarray:
    return np.frombuffer(_FILE.read_bytes(), dtype=np.uint8).reshape(-1, 65)


def test_layout() -> None:
    records = _records()
    assert records.shape == (1797, 65)
    assert records[:, :64].max() == 16
    assert sorted(set(records[:, 64])) == list(range(10))
    # A prefix is a fair sample: each digit is there about as often as the others.
    assert np.bincount(records[:359, 64]).min() >= 20


def test_it_is_what_scikit_learn_has() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    everything = np.concatenate([theirs.data, theirs.target[:, None]], axis=1).astype(np.uint8)
    assert sorted(map(bytes, _records())) == sorted(map(bytes, everything))


def test_the_order_is_that_of_the_python_example() -> None:
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("sklearn.datasets")
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).numpy()
    theirs = datasets.load_digits()
    np.testing.assert_array_equal(_records()[:, 64], theirs.target[order])
    np.testing.assert_array_equal(_records()[:, :64], theirs.data[order])
