"""What byteps.jax calls operations that have no name: the ranks agree about it, whatever some of them refuse, trace or
leave out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")

import byteps
import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jobs import Outcomes

RunWorkers = Callable[..., Any]


def _names_without_end() -> None:
    """Calls without a program compile nothing for a name that is new."""
    bps.init()
    x = jnp.ones(3)
    bps.push_pull(x)
    with jax.log_compiles():
        compiled = _compilations(lambda: [bps.push_pull(x) for _ in range(100)])
    assert compiled == 0
    long = "name " * 200
    assert np.array_equal(bps.push_pull(x, False, long), 2 * np.ones(3))
    assert np.array_equal(bps.push_pull(x, False, "ñame ☃"), 2 * np.ones(3))


def _compilations(call: Callable[[], object]) -> int:
    count = 0

    def event(name: str, *_: object, **__: object) -> None:
        nonlocal count
        count += "backend_compile" in name

    jax.monitoring.register_event_duration_secs_listener(event)
    call()
    return count


def _refused_calls_use_no_number() -> None:
    """A rank whose call is refused, and that makes another, is in step with the others."""
    bps.init()
    x = jnp.ones((2, 3))
    wrong_dtype, number = jnp.ones(2, jnp.uint32), jnp.float32(1)
    calls = {
        "push_pull": (bps.push_pull, [wrong_dtype, {"a": x, "b": wrong_dtype}, "text"]),
        "broadcast": (functools.partial(bps.broadcast, root_rank=1), [wrong_dtype]),
        "allgather": (bps.allgather, [wrong_dtype, number]),
        "reducescatter": (bps.reducescatter, [wrong_dtype, number]),
        "alltoall": (bps.alltoall, [wrong_dtype, number]),
    }
    expected = {name: x for name in calls} | {"allgather": jnp.ones((4, 3)), "reducescatter": jnp.ones((1, 3))}
    for name, (call, wrong) in calls.items():
        if bps.rank() == 0:
            for value in wrong:
                with pytest.raises((TypeError, ValueError)):
                    call(value)
            with pytest.raises(TypeError, match="priority"):
                call(x, priority=1.5)
            if name != "broadcast":
                with pytest.raises(ValueError, match="process_set"):
                    call(x, process_set=bps.ProcessSet([0, 1]))
        assert np.array_equal(call(x), expected[name]), name
    with pytest.raises(ValueError, match="cannot be scaled"):
        bps.allreduce(jnp.ones(2, jnp.int32), postscale_factor=2.0)
    assert np.array_equal(bps.push_pull(x), x)


def _refused_arguments_use_no_number() -> None:
    """The same of what is wrong with a reduction, a root or splits, outside and inside of programs."""
    bps.init()
    rank = bps.rank()
    alone = bps.add_process_set([rank])
    x, whole, flags = jnp.ones((2, 3)), jnp.ones((2, 3), jnp.int32), jnp.ones((2, 3), bool)
    everywhere = [
        (bps.push_pull, (flags,), {}),
        (bps.push_pull, ({"a": x, "b": whole},), {"op": bps.Adasum}),
        (bps.push_pull, (x * 1j,), {"op": bps.Max}),
        (bps.push_pull, (x,), {"op": bps.Adasum, "axis_name": "devices"}),
        (bps.push_pull, (x,), {"axis_name": 5}),
        (bps.allreduce, (flags,), {}),
        (bps.reducescatter, (x,), {"op": bps.ReduceOp.BitOr}),
        (bps.broadcast, (x, 2), {}),
        (bps.broadcast, (x, 1 - rank), {"process_set": alone}),
        (bps.alltoall, (jnp.ones(3),), {}),
        (bps.alltoall, (x, [1, 1, 0]), {}),
    ]
    outside = [
        (bps.alltoall, (x, [3, -1]), {}),
        (bps.alltoall, (x, [1, 0]), {}),
        (bps.allgather, (x,), {"priority": 1.5}),
    ]

    def right(call: Any, value: Any) -> Any:
        return call(value, *([1] if call is bps.broadcast else []))

    for call, arguments, options in everywhere + outside:
        if rank == 0:
            with pytest.raises((TypeError, ValueError, NotImplementedError)):
                jax.block_until_ready(call(*arguments, **options))
        jax.block_until_ready(right(call, x))
    for call, arguments, options in everywhere:
        first, *others = arguments
        if rank == 0:
            with pytest.raises((TypeError, ValueError, NotImplementedError)):
                jax.block_until_ready(
                    jax.jit(lambda value, of=call, rest=others, more=options: of(value, *rest, **more))(first)
                )
        jax.block_until_ready(jax.jit(lambda value, of=call: right(of, value))(x))
    # What has no gradient.
    for call, options in ((bps.push_pull, {"op": bps.Max}), (bps.reducescatter, {"op": bps.Max})):

        def loss(value: Any, of: Any = call, **options: Any) -> Any:
            return of(value, **options).sum()

        if rank == 0:
            with pytest.raises(NotImplementedError, match="no gradient"):
                jax.grad(functools.partial(loss, **options))(x)
        jax.block_until_ready(jax.grad(loss)(x))


def _what_some_ranks_trace() -> None:
    """Programs over a process set, which the others do not trace, are counted apart."""
    bps.init()
    pair = bps.add_process_set([0, 1])
    x = jnp.ones(2)
    if bps.rank() < 2:
        assert np.array_equal(jax.jit(lambda x: bps.push_pull(x, average=False, process_set=pair))(x), [2, 2])
        assert np.array_equal(jax.jit(lambda x: bps.allgather(x, process_set=pair))(x), [1] * 4)
    assert np.array_equal(jax.jit(lambda x: bps.push_pull(x, average=False))(x), [3, 3])
    assert np.array_equal(jax.jit(bps.allgather)(x), [1] * 6)


def _programs_behind_a_join() -> None:
    """A rank that had no data traces behind the join what the others have compiled before it."""
    bps.init()
    step = jax.jit(lambda x: bps.push_pull(x, average=False))
    if bps.rank() == 0:
        assert np.array_equal(step(jnp.ones(2)), [1, 1])
    bps.join()
    assert np.array_equal(step(jnp.ones(2)), [2, 2])
    assert np.array_equal(jax.jit(lambda x: bps.push_pull(x + 1, average=False))(jnp.ones(2)), [4, 4])


BODIES = [
    _names_without_end,
    _refused_calls_use_no_number,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _two_of_one_name() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:

        @jax.jit
        def program(x: jax.Array) -> jax.Array:
            x = jnp.sin(jnp.cos(x))
            return sum(bps.push_pull(jnp.sin(x * number), name="met") for number in range(10))

        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(program(jnp.ones(20000)))
        message = str(caught.value)
    bps.barrier("the end", timeout=60)
    return message


def test_two_of_one_name_are_told_the_remedy(run_workers: RunWorkers) -> None:
    """No other rank answers, so that the first is in flight when the second comes."""
    message = run_workers(_two_of_one_name, BYTEPS_OP_TIMEOUT="4").results[0]
    assert '"met" is still in flight' in message and "save_only_these_names" in message, message


def _refused_on_one_rank() -> None:
    """Rank 1 has one of the name in flight when its program comes to the next."""
    bps.init()
    program = jax.jit(lambda x: bps.push_pull(x, name="x", op=bps.Sum))
    begun = None
    if bps.rank() == 1:
        begun = byteps.push_pull_async(np.ones(3, np.float32), name="x", op=byteps.Sum)
        with pytest.raises(jax.errors.JaxRuntimeError, match="ALREADY_EXISTS"):
            jax.block_until_ready(program(jnp.ones(3)))
    bps.barrier("refused", timeout=60)
    if begun is None:
        assert program(jnp.ones(3))[0] == 2
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"rank 1 .*another operation of this name was in flight"):
            jax.block_until_ready(program(jnp.ones(3)))
    else:
        begun.wait()
    bps.barrier("told", timeout=60)
    assert program(jnp.full(3, 10.0 + bps.rank()))[0] == 21


def test_an_operation_refused_on_one_rank_fails_on_all(run_workers: RunWorkers) -> None:
    run_workers(_refused_on_one_rank, BYTEPS_OP_TIMEOUT="20")


def _helper_with_a_jit_of_its_own() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:
        traced = []

        @jax.jit
        def helper(x: jax.Array) -> jax.Array:
            traced.append(x)
            return bps.push_pull(jnp.sin(x))

        # As if one of the calls had begun already: which of two errors a program ends with is up to XLA.
        begun = byteps.push_pull_async(np.ones(20000, np.float32), name="push_pull.traced.0")
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(jax.jit(lambda x, y: helper(x) + helper(y))(jnp.ones(20000), jnp.zeros(20000)))
        message = str(caught.value)
        assert len(traced) == 1
    bps.barrier("refused", timeout=60)
    if bps.rank() == 1:
        begun = byteps.push_pull_async(np.ones(20000, np.float32), name="push_pull.traced.0")
    begun.wait()
    return message


def test_a_helper_with_a_jit_of_its_own_is_told_the_remedy(run_workers: RunWorkers) -> None:
    """JAX traces it once, so that both calls have one number."""
    message = run_workers(_helper_with_a_jit_of_its_own, BYTEPS_OP_TIMEOUT="60").results[0]
    assert '"push_pull.traced.0" is still in flight' in message and "under a jax.jit of its own" in message, message


def test_refused_arguments_use_no_number(run_workers: Callable[..., Any]) -> None:
    run_workers(_refused_arguments_use_no_number, BYTEPS_OP_TIMEOUT="20")


def test_what_some_ranks_trace(run_workers: Callable[..., Any]) -> None:
    run_workers(_what_some_ranks_trace, workers=3, BYTEPS_OP_TIMEOUT="20")


def test_programs_behind_a_join(run_workers: Callable[..., Any]) -> None:
    run_workers(_programs_behind_a_join, BYTEPS_OP_TIMEOUT="20")
