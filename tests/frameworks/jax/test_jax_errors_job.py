"""What byteps.jax raises on every rank over two workers and a server, and that the session goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jobs import Outcomes

RunWorkers = Callable[..., Any]


def _mismatches() -> None:
    bps.init()
    rank = bps.rank()

    def expect(call: Callable[[str], jax.Array], name: str, *words: str) -> None:
        for kind, wrap in (("outside", lambda f: f), ("inside", jax.jit)):
            own = f"{name} {kind}"
            with pytest.raises(jax.errors.JaxRuntimeError) as raised:
                jax.block_until_ready(wrap(lambda: call(own))())  # noqa: B023
            for word in (own, "FAILED_PRECONDITION", "rank 0", "rank 1", *words):
                assert word in str(raised.value), (word, str(raised.value))
            # The session goes on, and so does the name.
            assert bps.push_pull(jnp.ones(3), False, own)[0] == 2

    expect(lambda name: bps.push_pull(jnp.ones(3 + rank), name=name), "shape")
    expect(lambda name: bps.push_pull(jnp.ones((1 + rank, 3)), name=name), "dimensions", "1x3", "2x3")
    expect(lambda name: bps.push_pull(jnp.ones(3, [jnp.float32, jnp.int32][rank]), name=name), "dtype", "int32")
    expect(lambda name: bps.push_pull(jnp.ones(3), op=[bps.Sum, bps.Min][rank], name=name), "operation")
    expect(lambda name: bps.broadcast(jnp.ones(3), rank, name=name), "root")


def _wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.push_pull(jnp.ones(1))
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.broadcast(jnp.ones(1), 0)
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.broadcast_parameters({})
    program = jax.jit(lambda x: bps.push_pull(x, False, "x"))
    bps.init()
    assert program(jnp.ones(())) == 2
    for wrong, kind, words in (
        ({"op": 9}, ValueError, "op is 9"),
        ({"op": bps.Average, "average": False}, ValueError, "average"),
        ({"priority": 1.5}, TypeError, "priority"),
        ({"name": ""}, ValueError, "name"),
        ({"compression": "fp16"}, TypeError, "compression"),
    ):
        with pytest.raises(kind, match=words):
            bps.push_pull(jnp.ones(1), **wrong)
    for call in (bps.push_pull, bps.allreduce):
        with pytest.raises(TypeError, match=r"average is Max.*op=Max"):
            call(jnp.ones(1), bps.Max)
    with pytest.raises(TypeError, match="uint32"):
        bps.push_pull(jnp.ones(1, jnp.uint32), name="x")
    with pytest.raises(ValueError, match="root_rank"):
        bps.broadcast(jnp.ones(1), 2)
    with pytest.raises(TypeError, match="broadcast_object"):
        bps.broadcast_parameters({"a": "text"})

    # A program outlives the session it was first run in.
    bps.shutdown()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"bps\.init"):
        jax.block_until_ready(program(jnp.ones(())))
    bps.init()
    assert program(jnp.ones(())) == 2


def _not_a_number_of_all() -> None:
    """Under jax.debug_nans JAX runs again what has made a NaN; what was sent is not sent again."""
    bps.init()
    infinite = jnp.array([jnp.inf, -jnp.inf])[bps.rank() :][:1]  # of opposite signs
    with jax.debug_nans(True):
        for name in ("x", None):
            with pytest.raises(FloatingPointError, match=name or "noname"):
                jax.block_until_ready(bps.push_pull(infinite, False, name))
            assert bps.push_pull(jnp.ones(1), False, name)[0] == 2
        inner = jax.jit(lambda x: bps.push_pull(x, False, "inner"))
        for wrap in (
            jax.vmap(lambda x: bps.push_pull(x, False, "batch")),
            jax.jit(lambda x: bps.push_pull(x, False, "inside")),
            jax.jit(lambda x: inner(x) - 1),
        ):
            with pytest.raises(FloatingPointError, match="not sent twice"):
                jax.block_until_ready(wrap(infinite))
            assert wrap(jnp.ones(1))[0] in (1, 2)
        # What comes before is found.
        with pytest.raises(FloatingPointError, match="log"):
            jax.block_until_ready(jax.jit(lambda x: bps.push_pull(jnp.log(x), False, "behind"))(jnp.array(-1.0)))


def _not_a_number_of_one() -> None:
    bps.init()

    @jax.jit
    def step(x: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return bps.push_pull(x, False, "loss"), bps.push_pull(x, False), jnp.log(number)

    with jax.debug_nans(True):
        for count in range(1, 4):
            x, number = jnp.full(1, count), jnp.array(1.0)
            if count == 2 and bps.rank() == 1:
                with pytest.raises(FloatingPointError, match="not sent twice"):
                    step(x, -number)
            else:
                assert [float(sums[0]) for sums in step(x, number)[:2]] == [2 * count, 2 * count]
    # Neither are numbers of unnamed operations drawn for what is not sent.
    assert bps.push_pull(jnp.ones(1), False)[0] == 2


BODIES = [
    _mismatches,
    _wrong_arguments,
]
if jax.__version_info__ >= (0, 10):  # older versions run programs again in ways of their own
    BODIES += [_not_a_number_of_all, _not_a_number_of_one]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _missing() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(jax.jit(lambda x: bps.push_pull(x, name="lonely"))(jnp.ones(3)))
        message = str(raised.value)
    bps.barrier("the end", timeout=60)
    return message


def test_who_is_missing(run_workers: RunWorkers) -> None:
    message = run_workers(_missing, BYTEPS_OP_TIMEOUT="4").results[0]
    assert "DEADLINE_EXCEEDED" in message and "lonely" in message and "1" in message, message


def _peer_dies() -> None:
    import os

    bps.init()
    program = jax.jit(lambda x: bps.push_pull(x, name="x"))
    jax.block_until_ready(program(jnp.ones(3)))
    bps.barrier("both have it", timeout=60)
    if bps.rank() == 1:
        os._exit(0)  # so that the other's exit status is the job's
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1") as raised:
        jax.block_until_ready(program(jnp.ones(3)))
    print(f"heard: {raised.value}", flush=True)
    raise raised.value


def test_a_dead_peer_ends_the_program(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False)
    assert job.returncode != 0, job.output
    assert "heard: UNAVAILABLE" in job.stdout, job.output


def _without_a_session() -> None:
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        jax.jit(lambda x: bps.push_pull(x, name="x"))(jnp.ones(3))
    bps.init()
    program = jax.jit(lambda x: bps.push_pull(x, name="x"))
    jax.block_until_ready(program(jnp.ones(3)))
    bps.shutdown()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*bps\.init\(\)"):
        jax.block_until_ready(program(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.broadcast(jnp.ones(3), 0)
    bps.init()
    assert np.array_equal(program(jnp.ones(3)), np.ones(3))


def test_before_init_and_after_shutdown(run_alone: RunWorkers) -> None:
    run_alone(_without_a_session)
