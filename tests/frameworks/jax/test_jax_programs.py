"""What becomes of operations in compiled programs: what JAX leaves out, what XLA must not, and how JAX starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework
from timelines import path_of, read_whole

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from byteps.elastic.failures import is_failed_operation
from byteps.jax.versions import starts_effects_in_python
from jax import lax

pytestmark = pytest.mark.skipif(starts_effects_in_python(), reason="an operation is an effect to this version of JAX")

RunWorkers = Callable[..., Any]


def _python_calls(run: Callable[[], object]) -> int:
    """How many functions Python enters in a run."""
    entered = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.usefixtures("alone")
def test_jax_starts_programs_as_it_starts_others() -> None:
    """JAX starts a program with a side effect in Python, which takes longer than the operations."""
    arrays = [jnp.ones(4) for _ in range(20)]
    calls = []
    for name in (None, "x"):

        def body(arrays: list[jax.Array], name: str | None = name) -> list[jax.Array]:
            if name is None:
                return [array + 1 for array in arrays]
            return [bps.push_pull(array, name=f"{name} {i}") for i, array in enumerate(arrays)]

        program = jax.jit(body)
        for _ in range(3):
            jax.block_until_ready(program(arrays))
        calls.append(_python_calls(lambda: program(arrays)))  # noqa: B023
    assert calls[1] == calls[0]


def _what_runs() -> None:
    bps.init()
    x = jnp.ones(3)

    def step(x: jax.Array) -> jax.Array:
        bps.push_pull(x, name="unused")
        bps.broadcast(x, 0, name="unused broadcast")
        bps.allgather(x, name="unused allgather")
        ordered = bps.push_pull(x, average=False, name="ordered")
        used, _ = lax.optimization_barrier((bps.push_pull(x, name="used"), ordered))
        return used

    assert np.array_equal(jax.jit(step)(x), x)

    # An operation in a loop runs each time, also if nothing in the loop changes its operand; equal ones are not merged.
    def again(total: jax.Array, _: None) -> tuple[jax.Array, None]:
        return total + bps.push_pull(x, average=False, name="again"), None

    assert np.array_equal(jax.jit(lambda x: lax.scan(again, x * 0, None, length=5)[0])(x), x * 5 * bps.size())
    # One rank uses what the other does not.
    if bps.rank() == 0:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r'"halved".*rank 1'):
            jax.block_until_ready(jax.jit(lambda x: bps.push_pull(x, name="halved"))(x))
    else:
        jax.block_until_ready(jax.jit(lambda x: (bps.push_pull(x, name="halved"), x)[1])(x))
    bps.barrier("the end", timeout=60)
    # Outside of programs all there is runs.
    bps.push_pull(x, name="outside").block_until_ready()
    bps.shutdown()


def test_unused_results_and_loops(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_what_runs, BYTEPS_TIMELINE=str(path), BYTEPS_OP_TIMEOUT="4")
    timelines = [read_whole(path_of(path, rank)) for rank in range(2)]
    sent = [[span.args["tensor"] for span in timeline.complete if "tensor" in span.args] for timeline in timelines]
    assert [set(names) for names in sent] == [
        {"used", "ordered", "again", "halved", "outside"},
        {"used", "ordered", "again", "outside"},
    ]
    for names in sent:
        assert names.count("again") == 5 * names.count("used")


def _later_program() -> None:
    """The error of an operation reaches the program that was given its result: elastic training knows it."""
    bps.init()
    reduce = jax.jit(lambda x: bps.push_pull(x, name="first"))
    square = jax.jit(lambda y: (y @ y.T).sum())
    for _ in range(3):
        failed = reduce(jnp.ones((2 + bps.rank(), 300)))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r'"first".*the ranks disagree') as caught:
            square(failed).block_until_ready()
        assert is_failed_operation(caught.value)
    assert not is_failed_operation(RuntimeError(str(caught.value)))
    bps.shutdown()


def test_an_error_that_reaches_a_later_program(run_workers: RunWorkers) -> None:
    run_workers(_later_program)


def _later_program_of_a_dead_peer() -> None:
    bps.init()
    reduce = jax.jit(lambda x: bps.push_pull(x, name="first"))
    reduce(jnp.ones(300)).block_until_ready()
    bps.barrier("both have it", timeout=60)
    if bps.rank() == 1:
        os._exit(0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1") as caught:
        while True:
            float(reduce(jnp.ones(300))[0])
    print(f"failed operation: {is_failed_operation(caught.value)}", flush=True)
    os._exit(1)


def test_a_dead_peer_that_reaches_a_later_program(run_workers: RunWorkers) -> None:
    """What uses the result is a program of its own: elastic training knows that error, too."""
    job = run_workers(_later_program_of_a_dead_peer, check=False)
    assert "failed operation: True" in job.stdout, job.output
