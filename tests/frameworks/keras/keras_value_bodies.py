"""A part of the job of test_keras_job.py: collectives of single arrays."""

from __future__ import annotations

import importlib

import byteps
import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.flavor import backend_of, installed_keras
from keras_models import keras


def values() -> None:
    bps.init()
    rank = bps.rank()
    np.testing.assert_array_equal(bps.push_pull(np.array([1.0, 2]) * (rank + 1)), [1.5, 3])
    assert bps.push_pull(rank + 1, average=False) == 3
    np.testing.assert_array_equal(bps.allreduce([rank * 1.0], prescale_factor=4.0), [2])
    np.testing.assert_array_equal(bps.broadcast(np.array(["rank", str(rank)]), 1), ["rank", "1"])
    np.testing.assert_array_equal(bps.allgather(np.full([rank + 1, 2], rank)), [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(bps.reducescatter(np.full([3], rank + 1.0)), [1.5] * (2 - rank))
    np.testing.assert_allclose(bps.push_pull(np.eye(2)[rank], op=bps.Adasum), [1, 1])
    variable = keras.Variable([1.0 * rank]) if hasattr(keras, "Variable") else None
    if variable is not None:
        np.testing.assert_array_equal(bps.push_pull(variable), [0.5])


def values_as_horovod_gives_them() -> None:
    """On TensorFlow tensors of its types, else NumPy's arrays."""
    import byteps.horovod.keras as hvd

    bps.init()
    rank = bps.rank()
    modules = [hvd]
    on_tensorflow = backend_of(installed_keras()) == "tensorflow"
    if on_tensorflow:
        modules.append(importlib.import_module("byteps.horovod.tensorflow.keras"))
    for module in modules:
        results = [
            module.allreduce(0.5 + rank),
            module.allreduce(np.array([rank], np.float64), average=False),
            module.allreduce(rank + 1, op=hvd.Sum),
            module.broadcast([1.0 * rank], 1),
            module.allgather(np.full([1], rank)),
            module.reducescatter(np.full([2], rank + 1.0)),
        ]
        expected = [1.0, [1.0], 3, [1.0], [0, 1], [1.5]]
        for result, value in zip(results, expected):
            np.testing.assert_array_equal(result.numpy() if on_tensorflow else result, value)
        if on_tensorflow:
            import tensorflow as tf

            assert [result.dtype.name for result in results[:4]] == ["float32", "float64", "int32", "float32"]
            assert float(module.allreduce(tf.Variable(1.0 * rank))) == 0.5
            assert float(module.allreduce(tf.constant(1.0 * rank)).numpy()) == 0.5
            with tf.Graph().as_default():
                assert module.allreduce(1.0 * rank) == 0.5


def values_of_pytorch() -> None:
    """Tensors that have a gradient, and those of types that NumPy has from ml_dtypes."""
    import ml_dtypes
    import torch

    bps.init()
    rank = bps.rank()
    learnt = torch.full((2,), 1.0 * rank, requires_grad=True)
    for value in (learnt, learnt * 1, torch.nn.Parameter(learnt.detach())):
        np.testing.assert_array_equal(bps.push_pull(value), [0.5, 0.5])
    narrow = torch.full((2, 3), rank + 1.0, dtype=torch.bfloat16).T
    reduced = bps.push_pull(narrow, average=False)
    assert (reduced.dtype, reduced.shape) == (ml_dtypes.bfloat16, (3, 2)) and (reduced == 3).all()
    assert bps.push_pull(torch.tensor(rank + 1.0, dtype=torch.bfloat16), average=False) == 3
    np.testing.assert_array_equal(bps.push_pull(torch.tensor([1j * rank]).conj(), average=False), [-1j])
    if hasattr(torch, "float8_e4m3fn"):
        found = bps.broadcast(torch.full((2,), rank + 1.0).to(torch.float8_e4m3fn), 1)
        assert found.dtype == ml_dtypes.float8_e4m3fn and (found.astype(float) == 2).all()


def broadcasts_of_different_arrays_are_refused() -> None:
    """Of as many bytes, which would be taken for values of another type or in another place."""
    bps.init()
    rank = bps.rank()
    for number, (ours, theirs) in enumerate(
        (
            (np.zeros(4, np.float32), np.zeros(4, np.int32)),
            (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)),
            (np.zeros((2, 3), np.uint32), np.zeros((3, 2), np.uint32)),
            (np.zeros(4, np.uint32), np.zeros(2, np.uint64)),
        )
    ):
        with pytest.raises(byteps.FailedPreconditionError):
            bps.broadcast(ours if rank == 0 else theirs, 0, name=f"mismatch {number}")
    # Others of one size have names of their own, and wait until the deadline.
    assert (
        len(
            {
                byteps.keras.arrays._type_name(np.dtype(kind))
                for kind in ("<u4", ">u4", ">f4", "M8[s]", "M8[D]", "S4", "V4")
            }
        )
        == 7
    )
    for dtype in (np.uint32, ">f4", "M8[s]", np.bool_, np.complex128, "S3", np.longdouble):
        for shape in ((), (0, 2), (3, 1)):
            given = np.full(shape, rank + 1).astype(dtype)
            found = bps.broadcast(given, 1)
            assert (found.dtype, found.shape) == (given.dtype, shape)
            np.testing.assert_array_equal(found, np.full(shape, 2).astype(dtype))
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(2 + rank, use_bias=False)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    with pytest.raises(byteps.FailedPreconditionError):
        bps.elastic.KerasState(model).sync()
    assert bps.push_pull(1.0, average=False) == 2


def refused_values_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    bps.init()
    right = np.ones([2, 2])
    for call, wrong, options in (
        (bps.push_pull, np.ones(2, np.uint16), {}),
        (bps.push_pull, np.ones(2, bool), {}),
        (bps.push_pull, right, {"op": 77}),
        (bps.broadcast, np.array([object()]), {}),
        (bps.allgather, 1.0, {}),
        (bps.allgather, np.ones(2, np.uint16), {}),
        (bps.reducescatter, 1.0, {}),
        (bps.reducescatter, np.ones(2, bool), {}),
    ):
        root = [1] if call is bps.broadcast else []
        if bps.rank() == 0:
            with pytest.raises((TypeError, ValueError)):
                call(wrong, *root, **options)
        call(right, *root)
