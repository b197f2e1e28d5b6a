"""byteps.jax.push_pull and broadcast over two workers and a server: the bits, inside and outside of programs, in
place, the errors on every rank, and that the session goes on."""

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


def _transformations() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    weights = jnp.array([1.0, 10.0, 100.0])

    def loss(x: jax.Array, op: bps.ReduceOp, name: str) -> jax.Array:
        return (bps.push_pull(x, op=op, name=name) * weights * (rank + 1)).sum()

    expected = np.asarray(weights) * sum(range(1, size + 1))
    for number, wrap in enumerate((lambda f: f, jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(f)))):
        for op, share in ((bps.Sum, 1.0), (bps.Average, 1.0 / size)):
            gradient = jax.grad(wrap(lambda x: loss(x, op, f"loss {number}")))(jnp.ones(3))  # noqa: B023
            assert np.allclose(gradient, expected * share)
    with pytest.raises(NotImplementedError, match="Max"):
        jax.grad(lambda x: loss(x, bps.Max, "max"))(jnp.ones(3))

    second = jax.jit(jax.grad(lambda x: jax.grad(lambda y: (bps.push_pull(y, False, "second") ** 3).sum())(x).sum()))
    x = jnp.ones(2) * (rank + 1)
    # Of s^3, where s is the sum of the ranks' y: the sum over ranks of 3 s^2, then that of 6 s, summed twice again.
    assert np.allclose(second(x), 6 * 3 * size**2 * np.ones(2)), second(x)

    # A batch is one tensor.
    batch = jnp.arange(6.0).reshape(2, 3) + rank
    assert np.array_equal(
        jax.vmap(lambda x: bps.push_pull(x, False, "batch"))(batch), 2 * np.arange(6).reshape(2, 3) + 1
    )
    nested = jax.jit(jax.vmap(jax.vmap(lambda x: bps.push_pull(x, False, "nested"), axis_name="inner")))
    assert np.array_equal(nested(batch), 2 * np.arange(6).reshape(2, 3) + 1)
    # The same for all elements of the axis: one of it.
    named = jax.vmap(lambda x: jax.lax.psum(bps.push_pull(jax.lax.pmean(x, "i"), False, "same"), "i"), axis_name="i")
    np.testing.assert_array_equal(named(jnp.arange(3.0) + bps.rank()), [9, 9, 9])
    np.testing.assert_array_equal(jax.jit(named)(jnp.arange(3.0) + bps.rank()), [9, 9, 9])
    per_example = jax.vmap(jax.grad(lambda x: (bps.push_pull(x, False, "per example") ** 2).sum()))(batch)
    assert np.allclose(per_example, 2 * 2 * (2 * np.arange(6).reshape(2, 3) + 1))

    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = bps.push_pull(carry + x, False, "carry")
        return carry, bps.push_pull(x, False, "each")

    last, each = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(4.0)))(jnp.ones(()))
    assert last == functools.reduce(lambda carry, x: 2 * (carry + x), range(4), 1.0)
    assert np.array_equal(each, 2 * np.arange(4))
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: bps.push_pull(y, False, "loop"), x))
    assert looped(jnp.ones(())) == 8
    chosen = jax.jit(lambda go, x: jax.lax.cond(go, lambda y: bps.push_pull(y, False, "cond"), lambda y: y, x))
    assert chosen(True, jnp.ones(())) == 2 and chosen(False, jnp.ones(())) == 1

    root = jax.jit(jax.grad(lambda x: (bps.broadcast(x, 1, name="root") * weights * (rank + 1)).sum()))(jnp.ones(3))
    assert np.array_equal(root, expected if rank == 1 else np.zeros(3))


def _gradients_of_pytrees() -> None:
    """Of arrays that travel at the same time, with the numbers of one at a time."""
    bps.init()
    rank = bps.rank()
    params = {"a": jnp.arange(3.0) + rank, "b": jnp.full(3, 2.0 - rank)}

    def at_once(tree: Any, name: str) -> Any:
        return bps.push_pull(tree, False, name)

    def apart(tree: Any, name: str) -> Any:
        return {key: bps.push_pull(leaf, False, f"{name} {key} alone") for key, leaf in tree.items()}

    def loss(params: Any, reduce: Callable[..., Any], name: str) -> jax.Array:
        summed = reduce({"a": params["a"], "b": params["b"] * 2}, name)
        return (summed["a"] * summed["b"] ** 2).sum() * (rank + 1)

    def with_metrics(params: Any, reduce: Callable[..., Any], name: str) -> tuple[jax.Array, Any]:
        value = (params["a"] * params["b"]).sum()
        return value, reduce({"loss": value, "norm": (params["b"] ** 2).sum()}, name)

    def scanned(params: Any, reduce: Callable[..., Any], name: str) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            carry = reduce(jax.tree_util.tree_map(lambda leaf: leaf * x, carry), name)
            return carry, (carry["a"] * carry["b"]).sum()

        return jax.lax.scan(step, params, jnp.arange(1.0, 4.0))[1].sum() * (rank + 1)

    def batch(params: Any, reduce: Callable[..., Any], name: str) -> Any:
        many = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf, leaf + 1]), params)
        return jax.vmap(jax.grad(functools.partial(loss, reduce=reduce, name=name)))(many)

    kinds: dict[str, Callable[..., Any]] = {
        "grad": jax.grad(loss),
        "value": jax.value_and_grad(loss),
        "metrics": jax.value_and_grad(with_metrics, has_aux=True),
        "scan": jax.grad(scanned),
        "vmap": batch,
        "second": jax.jacrev(jax.grad(loss)),
    }
    for kind, function in kinds.items():
        for number, wrap in enumerate((lambda f: f, jax.jit)):
            name = f"gradients of pytrees {kind} {number}"
            found, expected = (
                wrap(lambda params: function(params, reduce, name))(params)  # noqa: B023
                for reduce in (at_once, apart)
            )
            jax.tree_util.tree_map(np.testing.assert_array_equal, found, expected)
    # Not with each other alone: the sum of both is [1, 3, 5] and 2 * 3, and both ranks' losses go into each gradient.
    gradient = jax.grad(loss)(params, at_once, "known")
    np.testing.assert_array_equal(gradient["a"], 3 * 6.0**2 * np.ones(3))
    np.testing.assert_array_equal(gradient["b"], 3 * 2 * 2 * 6 * np.array([1.0, 3, 5]))


def _adasum_of_a_batch() -> None:
    """Its factors are those of whole tensors, and an element of a batch is one."""
    bps.init()
    batch = jnp.arange(6.0).reshape(3, 2) + bps.rank() * jnp.array([1.0, -2.0])

    def combined(x: jax.Array, name: str) -> jax.Array:
        return bps.push_pull(x, op=bps.Adasum, name=name)

    expected = np.stack([combined(x, "one by one") for x in batch])
    for number, wrap in enumerate((lambda f: f, jax.jit)):
        mapped = wrap(jax.vmap(lambda x: combined(x, f"adasum of a batch {number}")))  # noqa: B023
        np.testing.assert_array_equal(mapped(batch), expected)
    columns = jax.jit(jax.vmap(lambda x: combined(x, "columns"), in_axes=1, out_axes=1))
    np.testing.assert_array_equal(columns(batch.T), expected.T)
    trees = jax.jit(jax.vmap(lambda x: combined({"a": x, "b": -x}, "trees")))(batch)
    np.testing.assert_array_equal(trees["a"], expected)
    np.testing.assert_array_equal(trees["b"], -expected)


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
    _transformations,
    _gradients_of_pytrees,
    _adasum_of_a_batch,
    _numbers_of_64_bits,
    _at_once_in_one_program,
    _compressed,
    _other_dtypes,
    _many_at_once,
    _names_without_end,
    _mismatches,
    _wrong_arguments,
    _refused_calls_use_no_number,
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


def _helper_with_a_jit_of_its_own() -> str:
    bps.init()
    message = ""
    if bps.rank() == 0:

        @jax.jit
        def helper(x: jax.Array) -> jax.Array:
            return bps.push_pull(jnp.sin(x))

        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(jax.jit(lambda x, y: helper(x) + helper(y))(jnp.ones(20000), jnp.zeros(20000)))
        message = str(caught.value)
    bps.barrier("the end", timeout=60)
    return message


def test_a_helper_with_a_jit_of_its_own_is_told_the_remedy(run_workers: RunWorkers) -> None:
    """JAX traces it once, so that both calls have one number."""
    message = run_workers(_helper_with_a_jit_of_its_own, BYTEPS_OP_TIMEOUT="4").results[0]
    assert '"push_pull.traced.0" is still in flight' in message and "under a jax.jit of its own" in message, message


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


def _alone() -> None:
    bps.init()
    assert bps.size() == 1
    x = jnp.arange(1000.0)
    for op in OPS:
        assert np.array_equal(jax.jit(lambda a: bps.push_pull(a, op=bps.ReduceOp[op], name="x"))(x), x)  # noqa: B023
    assert np.array_equal(bps.broadcast(x, 0), x)


def test_one_worker_without_servers(run_alone: RunWorkers) -> None:
    run_alone(_alone)


def test_refused_arguments_use_no_number(run_workers: Callable[..., Any]) -> None:
    run_workers(_refused_arguments_use_no_number, BYTEPS_OP_TIMEOUT="20")


def test_what_some_ranks_trace(run_workers: Callable[..., Any]) -> None:
    run_workers(_what_some_ranks_trace, workers=3, BYTEPS_OP_TIMEOUT="20")


def test_programs_behind_a_join(run_workers: Callable[..., Any]) -> None:
    run_workers(_programs_behind_a_join, BYTEPS_OP_TIMEOUT="20")
