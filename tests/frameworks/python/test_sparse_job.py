"""Sparse all-reduce in real processes: some rows of each worker, against the reduction of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import DTYPES, native, reduced

RunWorkers = Callable[..., Any]


def _rows(seed: int, rank: int, rows: int, count: int, width: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    source = np.random.default_rng([seed, rank])
    indices = source.integers(0, rows, count) if rows else np.empty(0, dtype=np.int64)
    return indices, (source.standard_normal((len(indices), *width)) * 10).astype(dtype)


def _whole(indices: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    whole = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
    for index in np.unique(indices):
        whole[index] = reduced(_native.SUM, list(values[indices == index]))
    return whole


def _random(seeds: int = 12) -> int:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    dense = 0
    for seed in range(seeds):
        source = np.random.default_rng(seed)
        rows = int(source.choice([0, 1, 50, 3000]))
        width = [(), (1,), (7,), (3, 40)][source.integers(4)]
        dtype = str(source.choice(["float32", "float16", "int32", "float64", "complex64"]))
        counts = [int(source.choice([0, 1, 20, 500])) if rows else 0 for _ in range(size)]
        parts = [_rows(seed, each, rows, counts[each], width, dtype) for each in range(size)]
        wholes = [_whole(*part, rows) for part in parts]
        average = bool(seed % 2)
        expected = reduced(_native.AVERAGE if average else _native.SUM, wholes)
        indices, values = byteps.sparse_push_pull(*parts[rank], rows, name=f"s{seed % 3}", average=average)
        assert values.dtype == expected.dtype
        if indices is None:
            dense += 1
            assert values.shape == expected.shape
            assert values.tobytes() == expected.tobytes(), seed
        else:
            union = np.unique(np.concatenate([part[0] for part in parts]))
            assert (indices == union).all()
            assert values.shape == (len(union), *width)
            assert values.tobytes() == expected[union].tobytes(), seed
    byteps.shutdown()
    return dense


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_rows_are_reduced_as_whole_tensors_are(run_workers: RunWorkers, workers: int) -> None:
    results = run_workers(_random, workers=workers, servers=0).results
    # Both ways were taken, alike everywhere.
    assert 0 < results[0] < 12
    assert len(set(results)) == 1


def _wrong() -> None:
    byteps.init()
    rank = byteps.rank()
    indices, values = np.array([0, 9, 3]), np.ones((3, 2), dtype=np.float32)
    with pytest.raises(byteps.InvalidArgumentError, match=r'"w".*index 9 \(number 1 of 3\) is not a row of its 9 rows'):
        byteps.sparse_push_pull(indices, values, 9, name="w")
    with pytest.raises(byteps.InvalidArgumentError, match="index -1"):
        byteps.sparse_push_pull(np.array([-1]), values[:1], 9, name="w")
    with pytest.raises(byteps.InvalidArgumentError, match="an extent of its shape is -4"):
        byteps.sparse_push_pull(indices[:0], values[:0], -4, name="w")
    with pytest.raises(ValueError, match="first extents must be equal"):
        byteps.sparse_push_pull(indices, values[:2], 10, name="w")
    with pytest.raises(ValueError, match="of int64"):
        byteps.sparse_push_pull(indices.astype(np.int32), values, 10, name="w")
    with pytest.raises(byteps.InvalidArgumentError, match=r"max|maximum"):
        native().sparse_all_reduce("w", DTYPES["float32"], [10, 2], 0, 0, 0, _native.MAX)
    with pytest.raises(byteps.InvalidArgumentError, match="indices is NULL"):
        native().sparse_all_reduce("w", DTYPES["float32"], [10, 2], 0, values.ctypes.data, 3)
    # On every rank, with both sides; the session stays usable.
    with pytest.raises(byteps.FailedPreconditionError, match=r"rows of 10; rank 1 asks for .* rows of 11"):
        byteps.sparse_push_pull(indices, values, 10 + rank, name="w")
    with pytest.raises(byteps.FailedPreconditionError, match="do not agree"):
        byteps.sparse_push_pull(indices, values[:, : 1 + rank].copy(), 10, name="w")
    found, rows = byteps.sparse_push_pull(np.array([rank]), values[:1], 1000, name="w", average=False)
    assert found.tolist() == [0, 1]
    assert (rows == 1).all()
    # A worker without data has no rows.
    if rank == 0:
        found, rows = byteps.sparse_push_pull(np.array([7, 7]), values[:2], 1000, name="w", average=True)
        assert found.tolist() == [7]
        assert (rows == 1).all()
    byteps.join()
    byteps.shutdown()


def test_wrong_rows_are_errors(run_workers: RunWorkers) -> None:
    run_workers(_wrong, workers=2)
