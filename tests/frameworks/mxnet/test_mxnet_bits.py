"""The bits of training with byteps.mxnet: the same on all ranks, and in all runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from installed import framework

mx = framework("mxnet")

import byteps.mxnet as bps
import numpy as np

RunWorkers = Callable[..., Any]


def _digests() -> list[str]:
    """Of the weights behind each of a few steps."""
    bps.init()
    mx.random.seed(3)
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(64, activation="tanh", in_units=20), mx.gluon.nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    criterion = mx.gluon.loss.L2Loss()
    generator = np.random.default_rng(bps.rank())
    digests = []
    for _ in range(3):
        x = mx.nd.array(generator.normal(size=(16, 20)))
        y = mx.nd.array(generator.normal(size=(16, 10)))
        with mx.autograd.record():
            loss = criterion(net(x), y)
        loss.backward()
        trainer.step(16)
        # By their place: the numbers in names count the blocks of this process.
        state = b"".join(param.data().asnumpy().tobytes() for param in net.collect_params().values())
        digests.append(hashlib.sha256(state).hexdigest())
    return digests


def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers) -> None:
    runs = [run_workers(_digests).results for _ in range(2)]
    assert runs[0][0] == runs[0][1] == runs[1][0] == runs[1][1]
    assert len(set(runs[0][0])) == 3
