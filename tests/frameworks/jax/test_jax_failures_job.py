"""Failed operations of byteps.jax whose results nobody waits for: the program's end tells of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from byteps import elastic
from interrupts import interrupted
from jobs import output_of

RunWorkers = Callable[..., Any]

# JAX runs a small program on the thread that calls it, to its end.
CALLS_WAIT = jax.__version_info__ < (0, 9)


def _start(name: str = "x") -> jax.Array:
    """A result that the ranks disagree about, of a program that computes for a while before it sends."""

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        busy = jax.lax.fori_loop(0, 50, lambda _, y: jnp.tanh(y @ y), x)
        return bps.push_pull(jnp.full(2 + bps.rank(), busy.sum()), name=name)

    return program(jnp.ones((200, 200)))


def _wait_for(array: jax.Array) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="disagree"):
        jax.block_until_ready(array)


def _not_waited_for(ending: str) -> Any:
    bps.init()
    if ending == "dropped":
        _start()
    elif ending == "outside":
        bps.push_pull(jnp.ones(2 + bps.rank()), name="x")
    elif ending == "the second":
        _wait_for(_start("first"))
        return _start("second")
    elif ending == "an exit status":
        _start()
        sys.exit(3)
    else:
        return _start()
    return None


_ENDINGS = [("kept", 1), ("dropped", 1), ("outside", 1), ("the second", 1), ("an exit status", 3)]
if CALLS_WAIT:
    _ENDINGS.remove(("outside", 1))  # the call raises


@pytest.mark.parametrize("ending, code", _ENDINGS)
def test_the_exit_status_tells_of_what_nobody_has_waited_for(run_workers: RunWorkers, ending: str, code: int) -> None:
    job = run_workers(_ends_with, ending, options=("--verbose",), check=False)
    assert job.returncode == code, job.output
    # (Where one worker has ended with an error, bpslaunch ends the other before long.)
    ended = [rank for rank in range(2) if f"worker {rank}: exited with code {code} after" in job.stderr]
    assert ended, job.output
    for rank in ended:
        assert f"[worker {rank}] byteps: an operation has failed that the program has not waited for:" in job.stderr
        # (The module and the name of the error differ between versions.)
        assert re.search(rf"\[worker {rank}\] \S+RuntimeError: FAILED_PRECONDITION: push_pull", job.stderr), job.output


_KEPT: list[Any] = []


def _ends_with(ending: str) -> None:
    _KEPT.append(_not_waited_for(ending))


def _shutdown_raises() -> None:
    bps.init()
    _start()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*\"x\".*disagree"):
        bps.shutdown()
    assert not bps.is_initialized()
    bps.init()
    assert np.array_equal(bps.push_pull(jnp.ones(3), False, "x"), 2 * np.ones(3))
    bps.shutdown()


def test_shutdown_raises_what_nobody_has_waited_for(run_workers: RunWorkers) -> None:
    run_workers(_shutdown_raises)


def _handled() -> None:
    bps.init()
    for name in ("first", "second"):
        _wait_for(_start(name))
    if jax.__version_info__ >= (0, 5):  # in older ones these get numbers now and then, and no error
        with pytest.raises(jax.errors.JaxRuntimeError, match="disagree"):
            np.asarray(_start("as an array"))
        # The error of a program that was given what another has failed to make.
        with pytest.raises(jax.errors.JaxRuntimeError, match="disagree"):
            jax.block_until_ready(_start("before") + 1)


def test_what_was_handled_leaves_the_exit_status(run_workers: RunWorkers) -> None:
    job = run_workers(_handled, check=False)
    assert job.returncode == 0 and "has not waited for" not in job.stderr, job.output


def _elastic() -> None:
    bps.init()
    runs: list[int] = []

    @elastic.run
    def train(state: Any) -> int:
        runs.append(state.number)
        if len(runs) == 1:
            state.number = 5
            _start()
        return len(runs)

    assert train(elastic.ObjectState(number=3)) == 2
    assert runs == [3, 3]


def test_an_elastic_function_has_ended_when_its_programs_have(run_workers: RunWorkers) -> None:
    run_workers(_elastic)


def _interrupted() -> None:
    bps.init()
    x = jnp.ones(3)
    inside = jax.jit(lambda x: bps.push_pull(x, name="inside"))
    if bps.rank() == 0:
        for started in (inside(x), bps.push_pull(x, name="outside")):
            with interrupted():
                jax.block_until_ready(started)
        # The operations go on, and the end waits for them.
        bps.barrier("interrupted", timeout=120)
    else:
        bps.barrier("interrupted", timeout=120)
        jax.block_until_ready(inside(x))
        jax.block_until_ready(bps.push_pull(x, name="outside"))


@pytest.mark.skipif(CALLS_WAIT, reason="JAX runs a small program on the thread that calls it")
def test_ctrl_c_ends_a_wait_at_once(run_workers: RunWorkers) -> None:
    run_workers(_interrupted, BYTEPS_OP_TIMEOUT="200")


_USES_NOTHING = """
import byteps.jax as bps
from jax._src import xla_bridge

bps.init()
bps.barrier()
bps.shutdown()
assert not xla_bridge.backends_are_initialized()
"""


def test_a_program_without_operations_starts_no_backend() -> None:
    output_of([sys.executable, "-c", _USES_NOTHING])
