"""Which operation is how urgent, as the library has it from MXNet (its timeline says so): the scheduler sends the
largest priority first, and the next forward pass needs the first parameters first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from installed import framework

mx = framework("mxnet")

import byteps.mxnet as bps
from mxnet.gluon import nn
from timelines import priorities
from urgency import LAYERS, QUEUED, STEPS, VALUES, WIDTH, check_overtaking

RunWorkers = Callable[..., Any]


def _train() -> None:
    bps.init()
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6), nn.Dense(1, in_units=5))
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 6)))
    loss.backward()
    trainer.step(2)
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD())
    for index in range(3):
        weight = mx.nd.ones(4)
        optimizer.update(index, weight, mx.nd.ones(4), optimizer.create_state(index, weight))
    bps.push_pull(mx.nd.ones(3), name="push_pull", priority=5).wait_to_read()
    bps.allgather(mx.nd.ones(3), name="allgather", priority=-7).wait_to_read()
    mx.nd.waitall()
    bps.shutdown()


def test_priorities(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_train, BYTEPS_TIMELINE=str(path))
    found = priorities(path)
    assert found["push_pull"] == {5}
    assert found["allgather"] == {-7}
    # The trainer's, and three of the optimizer's.
    gradients = {name: urgent for name, urgent in found.items() if "gradient" in name}
    of_trainer = [f"{index}.net_dense_{kind}" for index, kind in enumerate(["bias", "weight"] * 2)]
    names = [*of_trainer, "0", "1", "2"]
    assert gradients == {f"gradient.{name}": {-int(name[0])} for name in names}


def _train_deep_network() -> None:
    bps.init()
    layers = [mx.gluon.Parameter(f"layer{layer:02}", shape=(VALUES,), init="zeros") for layer in range(LAYERS)]
    for layer in layers:
        layer.initialize()
    trainer = bps.DistributedTrainer(layers, "sgd", {"learning_rate": 1e-6})
    for _ in range(STEPS):
        with mx.autograd.record():
            hidden = mx.nd.ones((2, WIDTH))
            for layer in layers:
                hidden = mx.nd.tanh(mx.nd.dot(hidden, mx.nd.eye(WIDTH)) + layer.data().mean())
            loss = (hidden * hidden).sum()
        loss.backward()
        trainer.step(2)
    mx.nd.waitall()
    bps.shutdown()


def test_first_layers_overtake_last_ones(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_train_deep_network, BYTEPS_TIMELINE=str(path), **QUEUED)
    check_overtaking(path, [f"gradient.{layer}.layer{layer:02}" for layer in range(LAYERS)])
