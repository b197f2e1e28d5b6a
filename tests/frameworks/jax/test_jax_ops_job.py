"""byteps.jax.push_pull and broadcast over two workers and a server: the bits, inside and outside of programs, in
place."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from array_reduction import DTYPES, OPS, make, reduce, same_bits
from jax.ad_checkpoint import checkpoint_name
from jobs import Outcomes

RunWorkers = Callable[..., Any]
SHAPES = [(), (0,), (1,), (1001,), (33, 0), (37, 41)]


def _all_dtypes_and_ops() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    jax.config.update("jax_enable_x64", True)
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = [make(dtype, shape, of) for of in range(size)]

            def every(array: jax.Array, kind: str, name: str = f"{dtype} {shape}") -> dict[str, jax.Array]:
                return {op: bps.push_pull(array, op=bps.ReduceOp[op], name=f"{name} {op} {kind}") for op in OPS}

            given = jnp.asarray(inputs[rank])
            results = [jax.jit(functools.partial(every, kind="inside"))(given)]
            if shape in ((), (37, 41)):  # compiled one by one, which takes its time
                results.append(every(given, "outside"))
            for op in OPS:
                expected = reduce(inputs, op)
                for result in results:
                    assert same_bits(np.asarray(result[op]), expected), (dtype, shape, op, result[op], expected)
            assert same_bits(np.asarray(given), inputs[rank]), "the input is left alone"
            root = len(shape) % size
            sent = jax.jit(lambda array: bps.broadcast(array, root, name=f"{dtype} {shape}"))(given)  # noqa: B023
            assert same_bits(np.asarray(sent), inputs[root])
    jax.config.update("jax_enable_x64", False)


def _donated_is_reduced_in_place() -> None:
    bps.init()
    array = jnp.full((1000,), float(bps.rank()))
    address = array.unsafe_buffer_pointer()
    reduced = jax.jit(lambda a: bps.push_pull(a, average=False, name="x"), donate_argnums=0)(array)
    assert np.array_equal(reduced, np.ones(1000))
    assert reduced.unsafe_buffer_pointer() == address
    assert array.is_deleted()


def _pytrees() -> None:
    bps.init()
    rank = bps.rank()
    tree = {"a": jnp.ones(3) * rank, "b": [np.full(2, rank), {"c": 1.5 * rank}], "none": None}
    result = bps.push_pull(tree, average=False, name="tree")
    assert jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(tree)
    assert np.array_equal(result["a"], np.ones(3)) and np.array_equal(result["b"][0], [1, 1])
    assert result["b"][1]["c"] == 1.5
    # The leaves meet by their paths, whatever else there is.
    tree = {"shared": jnp.ones(2), f"of rank {rank}": {}}
    assert np.array_equal(bps.push_pull(tree, average=False, name="tree")["shared"], [2, 2])
    with pytest.raises(ValueError, match=r"tree\.1"):
        bps.push_pull(_Twice(), name="tree")
    # Keys of which the library's names could not tell one from the other.
    for key in ("a\0b", "\ud800"):
        for call in (bps.push_pull, functools.partial(bps.broadcast, root_rank=0), bps.broadcast_parameters):
            with pytest.raises(ValueError, match="name is"):
                call({key: jnp.ones(1)})
        with pytest.raises(ValueError, match="name is"):
            jax.jit(lambda x: bps.push_pull({key: x}, name="tree"))(jnp.ones(1))  # noqa: B023


@jax.tree_util.register_pytree_with_keys_class
class _Twice:
    """Two leaves of one name."""

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        return [(jax.tree_util.DictKey(1), jnp.ones(1)), (jax.tree_util.DictKey("1"), jnp.ones(1))], None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> _Twice:
        return cls()


def _numbers_of_64_bits() -> None:
    """Where JAX has none, an array of NumPy with values beyond 32 bits is refused, and uses no number."""
    bps.init()
    rank = bps.rank()
    right = {"int64": np.array([2**31 - 1, -(2**31)]), "float64": np.array([1e38, np.inf, np.nan, 0.1])}
    wrong = [
        np.array([1, 2**40 + 5]),
        np.int64(-(2**31) - 1),
        np.array([1.0, 1e300]),
        np.float64(-1e39),
        np.array([1e300j]),
    ]
    calls: list[Callable[..., Any]] = [
        functools.partial(bps.push_pull, op=bps.Max),
        functools.partial(bps.broadcast, root_rank=0),
        lambda x: jax.jit(lambda: bps.push_pull(x, average=False))(),
        lambda x: bps.push_pull({"a": np.ones(2), "b": x}, average=False),
        lambda x: bps.allreduce(x, prescale_factor=0.5),
        lambda x: bps.allgather(np.reshape(x, -1)),
    ]
    for call in calls:
        if rank == 0:
            for value in wrong:
                with pytest.raises(TypeError, match=r"beyond those of.*jax_enable_x64"):
                    call(value)
        jax.block_until_ready(call(np.ones(2)))
    for name, values in right.items():
        sent = bps.broadcast(values, 1, name)
        assert sent.dtype.itemsize == 4
        np.testing.assert_array_equal(sent, values.astype(sent.dtype))
    jax.config.update("jax_enable_x64", True)
    for value in wrong:
        np.testing.assert_array_equal(bps.broadcast(value, 1, "whole"), value)
        assert bps.broadcast(value, 1, "whole").dtype == value.dtype
    jax.config.update("jax_enable_x64", False)


def _at_once_in_one_program() -> None:
    """Programs that are large enough for XLA to run their operations at the same time."""
    bps.init()
    x = jnp.full(20000, 1.0 + bps.rank())

    def loss(x: jax.Array) -> jax.Array:
        x = jnp.sin(jnp.cos(jnp.sin(x)))
        total = checkpoint_name(bps.push_pull(x, name="kept"), "sums")
        return (total**2 * jnp.cos(x)).sum()

    kept = jax.checkpoint(loss, policy=jax.checkpoint_policies.save_only_these_names("sums"))
    whole, again = jax.jit(jax.value_and_grad(loss)), jax.jit(jax.value_and_grad(kept))
    for step in range(5):
        for one, other in zip(whole(x + step), again(x + step)):
            np.testing.assert_allclose(one, other, rtol=1e-5)

    def both(x: jax.Array) -> jax.Array:
        y, back = jax.vjp(lambda x: bps.push_pull(jnp.sin(x), False, name="pulled back"), x)
        return back(jnp.ones_like(y))[0] + 10 * back(x)[0]

    if jax.__version_info__ >= (0, 10):
        summed = [jnp.cos(x + step) * (2 + 10 * (2 * step + 3)) for step in range(5)]
        for step, expected in enumerate(summed):
            np.testing.assert_allclose(jax.jit(both)(x + step), expected, rtol=1e-4, atol=1e-4)


def _compressed() -> None:
    bps.init()
    inputs = [np.nan_to_num(make(np.dtype(np.float32), (5000,), of)) for of in range(bps.size())]
    for compression, dtype in ((bps.Compression.fp16, jnp.float16), (bps.Compression.bf16, jnp.bfloat16)):
        reduced = jax.jit(lambda x: bps.push_pull(x, compression=compression, name="x"))(inputs[bps.rank()])  # noqa: B023
        narrow = [np.asarray(jnp.asarray(array).astype(dtype)) for array in inputs]
        assert same_bits(np.asarray(reduced), reduce(narrow, "Average").astype(np.float32))
    whole = bps.push_pull(jnp.arange(3), False, "y", compression=bps.Compression.fp16)
    assert whole.dtype == jnp.int32 and np.array_equal(whole, [0, 2, 4])


def _other_dtypes() -> None:
    bps.init()
    mine = jnp.array([[True, True, False, False], [True, False, True, False]])[bps.rank()]
    assert bps.push_pull(mine, op=bps.Max, name="any").tolist() == [True, True, True, False]
    assert bps.push_pull(mine, op=bps.Min, name="all").tolist() == [True, False, False, False]
    assert bps.push_pull(mine, op=bps.ReduceOp.BitXor, name="one").tolist() == [False, True, True, False]
    assert bps.push_pull(jnp.int16(300), False, "int16") == 600
    assert bps.push_pull(jnp.complex64(1 + 2j * bps.rank()), name="complex") == 1 + 1j


def _many_at_once() -> None:
    """The programs of the ranks have them in different orders."""
    bps.init()
    rank = bps.rank()
    numbers = list(range(200)) if rank == 0 else list(reversed(range(200)))

    @jax.jit
    def program(arrays: list[jax.Array]) -> dict[int, jax.Array]:
        return {n: bps.push_pull(arrays[n], False, f"tensor {n}", priority=n % 7) for n in numbers}

    for turn in range(3):
        result = jax.block_until_ready(program([np.full(1000, turn + rank + n, np.float32) for n in range(200)]))
        for n in numbers:
            assert np.array_equal(result[n], np.full(1000, 2 * (turn + n) + 1)), n


def _broadcast_parameters() -> None:
    bps.init()
    rank = bps.rank()
    tree = {
        "weights": jnp.full((300, 5), rank, jnp.bfloat16),
        "mask": np.array([rank == 1, rank == 0]),
        "count": jnp.uint32(rank),
        "complex": jnp.full(3, rank * 1j, jnp.complex64),
        "key": jax.random.key(rank),
        "old key": jax.random.PRNGKey(rank),
        "rate": 0.5 * rank,
        "step": rank,
        "scalar": np.float64(rank),
        "empty": jnp.ones((0, 3)),
    }
    for root in (0, 1):
        result = bps.broadcast_parameters(tree, root)
        assert np.array_equal(np.asarray(result["weights"], np.float32), np.full((300, 5), root))
        assert result["weights"].dtype == jnp.bfloat16
        assert result["mask"].tolist() == [root == 1, root == 0] and isinstance(result["mask"], np.ndarray)
        assert result["count"] == root and result["count"].dtype == jnp.uint32
        assert np.array_equal(result["complex"], np.full(3, root * 1j))
        assert np.array_equal(jax.random.uniform(result["key"], (4,)), jax.random.uniform(jax.random.key(root), (4,)))
        assert np.array_equal(result["old key"], jax.random.PRNGKey(root))
        assert (result["rate"], result["step"], result["scalar"]) == (0.5 * root, root, root)
        assert (type(result["rate"]), type(result["step"])) == (float, int)
    assert bps.broadcast_object({"rank": rank}, 1)["rank"] == 1


BODIES = [
    _all_dtypes_and_ops,
    _donated_is_reduced_in_place,
    _pytrees,
    _numbers_of_64_bits,
    _at_once_in_one_program,
    _compressed,
    _other_dtypes,
    _many_at_once,
    _broadcast_parameters,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _many_at_once_on_one_thread() -> None:
    _many_at_once()
    threads = [file.read_text(encoding="utf-8").strip() for file in Path("/proc/self/task").glob("*/comm")]
    assert threads.count("tf_XLAEigen") <= 1, threads


def test_one_thread_of_xla(run_workers: RunWorkers) -> None:
    """No operation holds the only thread that computes."""
    # XLA takes as many threads as this says there are processors.
    flags = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    run_workers(_many_at_once_on_one_thread, BYTEPS_OP_TIMEOUT="120", **flags)


def _digest() -> list[str]:
    """Of a few steps that mix all kinds of operations."""
    bps.init()

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        parts = [
            bps.push_pull(jnp.tanh(x * (i + 1)), name=f"part {i}", compression=bps.Compression.bf16) for i in range(9)
        ]
        return bps.push_pull(sum(parts), op=bps.Product, name="product")

    x = jnp.asarray(make(np.dtype(np.float32), (70_001,), bps.rank()))
    digests = []
    for _ in range(3):
        x = step(jnp.nan_to_num(x))
        digests.append(hashlib.sha256(np.asarray(x).tobytes()).hexdigest())
    return digests


def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers) -> None:
    runs = [run_workers(_digest, workers=2, servers=1).results for _ in range(2)]
    assert runs[0][0] == runs[0][1] == runs[1][0] == runs[1][1]
    assert len(set(runs[0][0])) == 3


def _alone() -> None:
    bps.init()
    assert bps.size() == 1
    x = jnp.arange(1000.0)
    for op in OPS:
        assert np.array_equal(jax.jit(lambda a: bps.push_pull(a, op=bps.ReduceOp[op], name="x"))(x), x)  # noqa: B023
    assert np.array_equal(bps.broadcast(x, 0), x)


def test_one_worker_without_servers(run_alone: RunWorkers) -> None:
    run_alone(_alone)
