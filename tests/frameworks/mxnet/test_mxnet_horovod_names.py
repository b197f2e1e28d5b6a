"""Names, arguments and defaults of horovod.mxnet 0.28.1; and its trainer and optimizer over some of the ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework
from signatures import BASICS, REQUIRED, check, check_errors

mx = framework("mxnet")

import byteps.horovod.mxnet as hvd
import byteps.horovod.mxnet.mpi_ops
import numpy as np
from byteps.process_set import global_process_set
from byteps.reduce_op import Average
from jobs import Outcomes

PS, _NAME, _PRIORITY = ("process_set", global_process_set), ("name", None), ("priority", 0)
T, TS, _ROOT = ("tensor", REQUIRED), ("tensors", REQUIRED), ("root_rank", REQUIRED)
_SCALE = [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
_REDUCE = [("average", None), _NAME, _PRIORITY, *_SCALE, PS, ("op", None)]
_SCATTER = [("op", Average), _NAME, _PRIORITY, *_SCALE, PS]
_WRAPPED = [("gradient_predivide_factor", 1.0), ("num_groups", 0), PS]

OPERATIONS: dict[str, list[tuple[str, Any]] | None] = {
    **BASICS,
    "allreduce": [T, *_REDUCE],
    "allreduce_": [T, *_REDUCE],
    "grouped_allreduce": [TS, *_REDUCE],
    "grouped_allreduce_": [TS, *_REDUCE],
    "allgather": [T, _NAME, _PRIORITY, PS],
    "grouped_allgather": [TS, _NAME, _PRIORITY, PS],
    "broadcast": [T, _ROOT, _NAME, _PRIORITY, PS],
    "broadcast_": [T, _ROOT, _NAME, _PRIORITY, PS],
    "alltoall": [T, ("splits", None), _NAME, _PRIORITY, PS],
    "reducescatter": [T, *_SCATTER],
    "grouped_reducescatter": [TS, *_SCATTER],
}
FUNCTIONS: dict[str, list[tuple[str, Any]] | None] = {
    "Compression": None,
    "broadcast_parameters": [("params", REQUIRED), ("root_rank", 0), ("prefix", None)],
    "broadcast_object": [("obj", REQUIRED), ("root_rank", 0), _NAME],
    "allgather_object": [("obj", REQUIRED), _NAME],
    "DistributedOptimizer": [("optimizer", REQUIRED), *_WRAPPED],
    "DistributedTrainer": [
        ("params", REQUIRED),
        ("optimizer", REQUIRED),
        ("optimizer_params", None),
        ("compression", hvd.Compression.none),
        ("gradient_predivide_factor", 1.0),
        ("prefix", None),
        ("num_groups", 0),
        PS,
    ],
}


@pytest.mark.parametrize("name", sorted({**OPERATIONS, **FUNCTIONS}))
def test_names_and_arguments(name: str) -> None:
    check(getattr(hvd, name), {**OPERATIONS, **FUNCTIONS}[name])
    if name in OPERATIONS:
        assert getattr(byteps.horovod.mxnet.mpi_ops, name) is getattr(hvd, name)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("mpi_ops", list(OPERATIONS)),
        ("functions", ["allgather_object", "broadcast_object"]),
        ("compression", ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]),
    ],
)
def test_modules(module: str, names: list[str]) -> None:
    """What programs import from the modules of Horovod is what its package has."""
    found = importlib.import_module(f"byteps.horovod.mxnet.{module}")
    for name in names:
        check(getattr(found, name), {**OPERATIONS, **FUNCTIONS}.get(name))
        assert getattr(hvd, name, getattr(found, name)) is getattr(found, name)
    assert len(set(found.__all__)) == len(found.__all__)
    assert all(hasattr(found, name) for name in found.__all__)


def test_types_of_errors() -> None:
    check_errors(hvd)


def test_everything_that_is_exported_is_there() -> None:
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def _net(value: float) -> Any:
    net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Constant(value))
    return net


def _step(net: Any, trainer: Any, scale: float) -> float:
    """The first weight after a step by gradients of `scale`."""
    with mx.autograd.record():
        loss = (net(mx.nd.ones((1, 2))) * scale).sum()
    loss.backward()
    trainer.step(1)
    return float(next(iter(net.collect_params().values())).data().asnumpy()[0, 0])


def _trainer() -> None:
    hvd.init()
    rank = hvd.rank()
    net = _net(1.0 + rank)
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, hvd.Compression.fp16, 2.0)
    # The trainer begins with the parameters of rank 0, which are those of rank 1 already.
    assert _step(net, trainer, rank + 1.0) == 2.0 - 1.5


def _trainer_of_some_ranks() -> None:
    hvd.init()
    mine = [hvd.add_process_set([rank]) for rank in range(2)][hvd.rank()]
    net = _net(float(hvd.rank()))
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, process_set=mine)
    assert _step(net, trainer, 3.0) == hvd.rank() - 3.0


def _optimizer() -> None:
    hvd.init()
    rank = hvd.rank()
    sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
    for options, expected in (
        ({}, 1.5),
        ({"gradient_predivide_factor": 4.0}, 1.5),
        ({"process_set": sets[rank]}, None),
    ):
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0), **options)
        weight, gradient = mx.nd.zeros((2,)), mx.nd.full((2,), rank + 1.0)
        optimizer.update(0, weight, gradient, optimizer.create_state(0, weight))
        np.testing.assert_array_equal(weight.asnumpy(), [-(expected or rank + 1.0)] * 2)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(mx.optimizer.create("sgd"), gradient_predivide_factor=0)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="num_groups"):
            hvd.DistributedOptimizer(mx.optimizer.create("sgd"), num_groups=wrong)
        with pytest.raises(ValueError, match="num_groups"):
            hvd.DistributedTrainer(_net(1.0).collect_params(), "sgd", num_groups=wrong)
    with pytest.raises(TypeError, match="process_set"):
        hvd.DistributedOptimizer(mx.optimizer.create("sgd"), process_set=[0])


BODIES = [_trainer, _trainer_of_some_ranks, _optimizer]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
