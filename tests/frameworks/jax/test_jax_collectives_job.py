"""allgather, reducescatter, alltoall, process sets and Adasum of byteps.jax over three workers: inside and outside of
programs, under transformations, the errors on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from installed import framework

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jobs import Outcomes, clean_environment, launcher_command, run_job

_SIZE = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One job of three workers that has run all bodies."""
    environment = clean_environment(BYTEPS_OP_TIMEOUT="120")
    folder = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(_SIZE, 1), _SIZE, BODIES, (), environment, check=False))


def _own(rows: int, rank: int) -> np.ndarray:
    return (np.arange(rows * 2) + 100 * rank).reshape(rows, 2).astype("float32")


def _allgather() -> None:
    bps.init()
    rank = bps.rank()
    whole = np.concatenate([_own(4, of) for of in range(_SIZE)])
    np.testing.assert_array_equal(jax.jit(lambda x: bps.allgather(x, name="inside"))(_own(4, rank)), whole)
    for rows in ((1, 2, 3), (0, 4, 1), (0, 0, 0)):
        expected = np.concatenate([_own(rows[of], of) for of in range(_SIZE)])
        np.testing.assert_array_equal(bps.allgather(jnp.asarray(_own(rows[rank], rank)), name="outside"), expected)
    for dtype in (jnp.uint8, jnp.bfloat16, bool, jnp.complex64):
        for call in (bps.allgather, jax.jit(bps.allgather, static_argnums=1)):
            found = call(jnp.full([2], rank).astype(dtype), f"{jnp.dtype(dtype).name}")
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, np.array([0, 0, 1, 1, 2, 2]).astype(dtype))
    assert bps.allgather_object(rank) == [0, 1, 2]
    with pytest.raises(ValueError, match="dimensions"):
        bps.allgather(1.0)


def _allreduce() -> None:
    bps.init()
    x = {"a": jnp.array([1.0, 2.0]) * (bps.rank() + 1)}
    for call in (bps.allreduce, jax.jit(bps.allreduce)):
        np.testing.assert_array_equal(call(x)["a"], [2, 4])
    scaled = bps.allreduce(x, average=False, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_array_equal(scaled["a"], [12, 24])
    with pytest.raises(ValueError, match="cannot be scaled"):
        bps.allreduce(jnp.array([1]), prescale_factor=2.0)
    with pytest.raises(ValueError, match="both op and average"):
        bps.allreduce(x, average=True, op=bps.Sum)


def _reducescatter() -> None:
    bps.init()
    rank = bps.rank()
    x = jnp.arange(14.0).reshape(7, 2) * (rank + 1)
    mine = np.arange(14.0).reshape(7, 2)[[slice(0, 3), slice(3, 5), slice(5, 7)][rank]]
    for op, factor in ((bps.Average, 2), (bps.Sum, 6), (bps.Max, 3)):

        def call(x: jax.Array, op: bps.ReduceOp = op) -> jax.Array:
            return bps.reducescatter(x, op, name=f"{op.name}")

        np.testing.assert_array_equal(call(x), mine * factor)
        np.testing.assert_array_equal(jax.jit(call)(x), mine * factor)
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.reducescatter(x, bps.Adasum)


def _alltoall() -> None:
    bps.init()
    rank = bps.rank()
    equal = jnp.array([10 * rank + to for to in range(_SIZE)])
    for call in (bps.alltoall, jax.jit(bps.alltoall)):
        np.testing.assert_array_equal(call(equal), [10 * of + rank for of in range(_SIZE)])
    splits = [to + (rank == 1) for to in range(_SIZE)]
    came = [rank, rank + 1, rank]
    found, rows = bps.alltoall(jnp.full([sum(splits)], rank), splits)
    np.testing.assert_array_equal(rows, came)
    np.testing.assert_array_equal(found, np.repeat([0, 1, 2], came))
    with pytest.raises(ValueError, match="split equally"):
        jax.jit(bps.alltoall)(jnp.ones([4]))
    with pytest.raises(ValueError, match="no splits inside"):
        jax.jit(lambda x: bps.alltoall(x, [1, 1, 1]))(jnp.ones([3]))


def _transformations() -> None:
    bps.init()
    rank = bps.rank()

    def gradient(call: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        return jax.jit(jax.grad(lambda x: jnp.sum(call(x)) * (rank + 1)))(x)

    own = jnp.ones([2, 2])
    np.testing.assert_array_equal(gradient(lambda x: bps.allgather(x, name="g"), own), np.full((2, 2), 2))
    by_row = np.repeat([[1.0, 1], [2, 2], [3, 3]], [3, 2, 2], axis=0)
    whole = jnp.ones([7, 2])
    np.testing.assert_array_equal(gradient(lambda x: bps.reducescatter(x, name="a"), whole), by_row)
    np.testing.assert_array_equal(gradient(lambda x: bps.reducescatter(x, bps.Sum, name="s"), whole), by_row * 3)
    back = np.repeat([[1.0, 1], [2, 2], [3, 3]], 2, axis=0)
    np.testing.assert_array_equal(gradient(lambda x: bps.alltoall(x, name="e"), jnp.ones([6, 2])), back)
    with pytest.raises(NotImplementedError, match="no gradient"):
        gradient(lambda x: bps.reducescatter(x, bps.Max, name="m"), whole)

    batched = jax.vmap(lambda x: bps.allgather(x, name="v"))(jnp.full([4, 1], rank))
    np.testing.assert_array_equal(batched, [[0, 1, 2]] * 4)

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + jnp.sum(bps.allgather(x, name="scan")), x

    assert float(jax.jit(lambda xs: jax.lax.scan(step, 0.0, xs)[0])(jnp.ones([5, 2]))) == 30


def _of_arrays_that_a_program_closes_over() -> None:
    """They are part of the program: done each time it runs, and not while it is traced."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    fixed = jnp.full((size, 2), rank + 1.0)
    total = size * (size + 1) / 2

    def all_three(x: jax.Array, name: str | None) -> jax.Array:
        def named(kind: str) -> str | None:
            return None if name is None else f"{name} {kind}"

        gathered = bps.allgather(fixed, name=named("gathered"))
        scattered = bps.reducescatter(fixed, bps.Sum, name=named("scattered"))
        exchanged = bps.alltoall(fixed, name=named("exchanged"))
        return x * (gathered.sum() + scattered.sum() + exchanged.sum())

    expected = 2 * size * total + 2 * total + 2 * total
    programs = [
        jax.jit(functools.partial(all_three, name="closed over")),
        jax.jit(functools.partial(all_three, name=None)),
        jax.jit(jax.grad(functools.partial(all_three, name="of a gradient"))),
    ]
    for program in programs:
        assert program(1.0) == expected
        assert program(1.0) == expected
    # A derivative outside of programs is none.
    assert jax.grad(functools.partial(all_three, name="alone"))(1.0) == expected
    bps.shutdown()
    for program in programs:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"bps\.init"):
            jax.block_until_ready(program(1.0))


def _process_sets() -> None:
    outer = bps.ProcessSet([2, 0])
    bps.init(process_sets=[outer])
    rank = bps.rank()
    mine = outer if rank != 1 else bps.add_process_set([1])
    x = jnp.array([1.0, 2.0]) * (rank + 1)
    total = np.array([1.0, 2.0]) * (4 if rank != 1 else 2)
    root = 2 if rank != 1 else 1

    def every(x: jax.Array, kind: str) -> tuple[jax.Array, ...]:
        return (
            bps.push_pull(x, average=False, name=f"sum {kind}", process_set=mine),
            bps.push_pull(x, name=f"mean {kind}", process_set=mine),
            bps.broadcast(x, root, name=f"root {kind}", process_set=mine),
            bps.allgather(x[:1], name=f"all {kind}", process_set=mine),
        )

    for found in (every(x, "outside"), jax.jit(lambda x: every(x, "inside"))(x)):
        np.testing.assert_array_equal(found[0], total)
        np.testing.assert_array_equal(found[1], total / mine.size())
        np.testing.assert_array_equal(found[2], np.array([1.0, 2.0]) * (root + 1))
        np.testing.assert_array_equal(found[3], [1, 3] if rank != 1 else [2])
    weighed = jax.grad(lambda x: jnp.sum(bps.push_pull(x, average=False, name="d", process_set=mine)) * (rank + 1))
    np.testing.assert_array_equal(weighed(x), [total[0]] * 2)
    of_root = jax.grad(lambda x: jnp.sum(bps.broadcast(x, root, name="b", process_set=mine)) * (rank + 1))
    np.testing.assert_array_equal(of_root(x), [total[0] if rank == root else 0] * 2)
    with pytest.raises(ValueError, match="does not know"):
        bps.push_pull(x, process_set=bps.ProcessSet([0, 1]))


def _adasum_and_join() -> None:
    bps.init()
    own = jax.nn.one_hot(bps.rank(), _SIZE)
    for call in (bps.push_pull, jax.jit(bps.push_pull, static_argnames=("op", "name"))):
        np.testing.assert_allclose(call(own, op=bps.Adasum, name="orthogonal"), np.ones(_SIZE), rtol=1e-6)
    for step in range(bps.rank() + 1):
        assert float(bps.push_pull(jnp.ones([]), average=False, name="x")) == _SIZE - step
    assert bps.join() == _SIZE - 1


def _disagreement() -> None:
    bps.init()
    rank = bps.rank()
    call = jax.jit(lambda x: bps.allgather(x, name="x"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="do not agree"):
        jax.block_until_ready(call(jnp.zeros([2], jnp.float32 if rank == 0 else jnp.int32)))
    # Rows that differ: the shapes were compiled already.
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"has an output of|as many rows"):
        jax.block_until_ready(call(jnp.zeros([1 + rank])))
    np.testing.assert_array_equal(call(jnp.full([1], rank)), [0, 1, 2])


BODIES = [
    _allgather,
    _allreduce,
    _reducescatter,
    _alltoall,
    _transformations,
    _of_arrays_that_a_program_closes_over,
    _process_sets,
    _adasum_and_join,
    _disagreement,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
