"""Asynchronous training: what ranks get that take different numbers of steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from installed import framework

mx = framework("mxnet")

import byteps.mxnet as bps
from asynchronous_runs import ASYNCHRONOUS, Step, bounded, run_bounded, run_until_the_peer_dies
from timelines import DEADLINE, wait_for

RunWorkers = Callable[..., Any]


def _steps_of_trainer() -> tuple[Callable[[float], None], mx.nd.NDArray]:
    net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.Constant(5.0 * bps.rank()))
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})

    def step(size: float) -> None:
        with mx.autograd.record():
            loss = net(mx.nd.full((4, 1), -size)).sum()
        loss.backward()
        trainer.step(4)

    return step, net.weight.data()


def _steps_of_optimizer() -> tuple[Callable[[float], None], mx.nd.NDArray]:
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
    weight = mx.nd.full((300, 40), 5.0 * bps.rank())
    return lambda size: optimizer.update(0, weight, mx.nd.full((300, 40), -size), None), weight


def _sums(of_trainer: bool) -> list[float]:
    """Rank 0 takes 10 steps of 1, rank 1 takes 4 of 2: one that waited for the other would never end."""
    bps.init()
    rank = bps.rank()
    step, weight = _steps_of_trainer() if of_trainer else _steps_of_optimizer()
    seen = 0.0  # the servers begin with rank 0's
    for _ in range(4 if rank else 10):
        step(rank + 1.0)
        low, high = weight.min().asscalar(), weight.max().asscalar()
        assert seen + rank + 1 <= low <= high <= 18
        seen = low
    bps.barrier()
    step(0.0)
    assert bps.push_pull(mx.nd.ones((2,)), op=bps.Sum, name="of all").asnumpy().tolist() == [2, 2]
    return sorted(set(weight.asnumpy().ravel().tolist()))


@pytest.mark.parametrize("of_trainer", [True, False])
def test_everybody_gets_all_steps(run_workers: RunWorkers, of_trainer: bool) -> None:
    assert run_workers(_sums, of_trainer, servers=2, BYTEPS_ENABLE_ASYNC="1").results == [[18.0]] * 2


def _two_sessions(of_trainer: bool) -> float:
    """The servers of the second session have nothing until the optimizer gives it to them."""
    bps.init()
    step, weight = _steps_of_trainer() if of_trainer else _steps_of_optimizer()
    for session in range(2):
        if session != 0:
            bps.shutdown()
            bps.init()
        step(1.0)
        mx.nd.waitall()
        bps.barrier()
        step(0.0)
    return float(weight.max().asscalar())


@pytest.mark.parametrize("of_trainer", [True, False])
def test_a_second_session_goes_on(run_workers: RunWorkers, of_trainer: bool) -> None:
    assert run_workers(_two_sessions, of_trainer, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [4.0] * 2


def _two_trainers() -> list[float]:
    """Whose parameters have the same names. Each has a thread, and the ranks begin with different ones."""
    bps.init()
    made = []
    for start in (0.0, 100.0):
        net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
        net.initialize(mx.init.Constant(start))
        made.append((net, bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})))

    def step(net: Any, trainer: Any, size: float) -> None:
        with mx.autograd.record():
            loss = net(mx.nd.full((1, 1), -size)).sum()
        loss.backward()
        trainer.step(1)

    with ThreadPoolExecutor() as threads:
        steps = []
        for net, trainer in made if bps.rank() == 0 else reversed(made):
            steps.append(threads.submit(step, net, trainer, 1.0))
            beginning = trainer._servers._beginning
            wait_for(lambda beginning=beginning: beginning.prefix != "", "the trainer did not begin")
        for taken in steps:
            taken.result(DEADLINE)
    mx.nd.waitall()
    bps.barrier()
    for net, trainer in made:
        step(net, trainer, 0.0)
    return [float(net.weight.data().asscalar()) for net, _ in made]


def test_two_trainers_begin_in_different_orders(run_workers: RunWorkers) -> None:
    job = run_workers(_two_trainers, servers=1, BYTEPS_ENABLE_ASYNC="1", BYTEPS_OP_TIMEOUT="60")
    assert job.results == [[2.0, 102.0]] * 2


def _step() -> Step:
    bps.init()
    take, weight = _steps_of_optimizer()

    def step(size: float) -> float:
        take(float(size))
        return float(weight.min().asscalar())

    return step


def _bounded() -> None:
    run_bounded(_step())


def _peer_dies() -> None:
    run_until_the_peer_dies(_step(), mx.base.MXNetError)


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_holds(run_workers: RunWorkers, bound: int) -> None:
    run_workers(_bounded, **bounded(bound))


def test_a_death_is_an_error_of_mxnet(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False, **ASYNCHRONOUS)
    assert job.returncode != 0 and "heard: " in job.output, job.output


def _refused() -> None:
    bps.init()
    mine = bps.add_process_set([bps.rank()])
    bps.DistributedOptimizer(mx.optimizer.create("sgd"), process_set=mine)  # alone: nothing is asynchronous
    for options, text in (
        ({"compression": bps.Compression.fp16}, "compression"),
        ({"compression_params": {"fp16": True}}, "compression"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ):
        with pytest.raises(ValueError, match=f"{text} does not go with asynchronous training"):
            bps.DistributedTrainer({}, "sgd", **options)
    with pytest.raises(bps.UnimplementedError, match="has no asynchronous training"):
        mx.kv.create("byteps")


def test_what_does_not_go_with_it(run_workers: RunWorkers) -> None:
    run_workers(_refused, BYTEPS_ENABLE_ASYNC="1")
