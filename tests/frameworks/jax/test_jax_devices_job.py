"""Several devices per process: shard_map and pmap over the devices of each worker, and the workers beside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RunWorkers = Callable[..., Any]
DEVICES = 4
_FLAGS = f"--xla_force_host_platform_device_count={DEVICES}"


def _shard_map(f: Callable[..., Any], check: bool = False, **options: Any) -> Callable[..., Any]:
    """shard_map under the name that it has in this JAX, with its check of which arrays differ or without."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    if hasattr(jax, "shard_map"):
        return jax.shard_map(f, mesh=mesh, check_vma=check, **options)
    from jax.experimental.shard_map import shard_map

    return shard_map(f, mesh=mesh, check_rep=check, **options)


def _contributions(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Of (worker, device): small whole numbers, exact in every sum and product."""
    count = 2 * DEVICES * int(np.prod(shape))
    return ((np.arange(count) * 7 + 3) % 3 + 1).reshape(2, DEVICES, *shape).astype(dtype)


_EXPECTED = {
    "Sum": lambda all_: all_.sum((0, 1)),
    "Average": lambda all_: all_.mean((0, 1)),
    "Min": lambda all_: all_.min((0, 1)),
    "Max": lambda all_: all_.max((0, 1)),
    "Product": lambda all_: all_.prod((0, 1)),
}


def _over_devices_and_workers() -> None:
    assert len(jax.devices()) == DEVICES
    bps.init()
    rank = bps.rank()
    for shape in ((), (1,), (7,), (3, 5), (0, 2)):
        given = _contributions(shape)
        for op, expected in _EXPECTED.items():
            if given.size == 0 and op in ("Min", "Max"):
                continue
            reduce = partial(bps.push_pull, op=bps.ReduceOp[op], name=f"{shape} {op}", axis_name="d")
            mapped = jax.jit(_shard_map(lambda x: reduce(x[0]), in_specs=P("d"), out_specs=P()))(given[rank])  # noqa: B023
            np.testing.assert_array_equal(mapped, expected(given))
        if given.size == 0:  # which JAX's pmap cannot read back
            continue
        each = jax.pmap(lambda x: bps.push_pull(x, name=f"{shape} pmap", axis_name="p"), axis_name="p")(given[rank])  # noqa: B023
        for result in each:
            np.testing.assert_array_equal(result, given.mean((0, 1)))
    whole = _contributions((6,), np.int32)
    mapped = jax.jit(
        _shard_map(lambda x: bps.push_pull(x[0], name="int", axis_name="d"), in_specs=P("d"), out_specs=P())
    )
    np.testing.assert_array_equal(mapped(whole[rank]), whole.sum((0, 1)) // (2 * DEVICES))


def _numbers_of_few_bits() -> None:
    """The sum over devices, and of an average that over workers, do not overflow: one of each device would fit."""
    bps.init()
    rank = bps.rank()

    def reduced(values: np.ndarray, **options: Any) -> Any:
        def of_device(x: jax.Array) -> jax.Array:
            return bps.push_pull(x[0], axis_name="d", **options)

        return jax.jit(_shard_map(of_device, in_specs=P("d"), out_specs=P()))(values)

    large = np.full((DEVICES, 7), 40000.0 - 8 * rank)
    mean = np.full(7, 39996)
    np.testing.assert_allclose(reduced(large.astype(np.float16), name="half"), mean, rtol=1e-3)
    for compression in (bps.Compression.fp16, bps.Compression.bf16):
        found = reduced(large.astype(np.float32), name="compressed", compression=compression)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, mean, rtol=1e-2)
    # What adds up to more on the way than in the end.
    signs = np.array([1, 1, -1, -1], np.float32)[:, None]
    sums = reduced((signs * 40000).astype(np.float16), name="half sum", average=False)
    np.testing.assert_array_equal(sums, [0])
    products = reduced(np.array([[300], [300], [0.01], [0.01]], np.float16), name="half product", op=bps.Product)
    np.testing.assert_allclose(products, [81], rtol=1e-2)
    # Devices add up in float32, though float16 has no 2049.
    steps = np.array([[2048], [1], [1], [1]], np.float16)
    np.testing.assert_array_equal(reduced(steps, name="half steps", average=False), [np.float16(2 * 2051)])
    for dtype, values in (
        (np.uint8, [200, 100, 255, 254]),
        (np.int8, [127, -128, -127, -126]),
        (np.int16, [30000, 32767, 32766, 1]),
    ):
        given = np.array(values, dtype)[:, None] * np.ones(3, dtype)
        found = reduced(given, name=f"average of {np.dtype(dtype).name}")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.full(3, sum(values) // DEVICES))
        # A sum wraps.
        total = reduced(given, name=f"sum of {np.dtype(dtype).name}", average=False)
        np.testing.assert_array_equal(total, np.full(3, 2 * sum(values)).astype(dtype))

    def step(gradient: jax.Array) -> jax.Array:
        params = {"w": jnp.zeros(1)}
        optimizer = bps.DistributedOptimizer(optax.sgd(1.0), bps.Compression.fp16, axis_name="d", name="narrow")
        return optimizer.update({"w": gradient}, optimizer.init(params), params)[0]["w"]

    updates = jax.jit(_shard_map(step, in_specs=P("d"), out_specs=P()))(np.full(DEVICES, 40000, np.float32))
    np.testing.assert_array_equal(updates, [-40000])


def _gradients_of_pytrees() -> None:
    bps.init()
    weights = _contributions((5,))[bps.rank()]

    def loss(x: jax.Array, name: str, check: bool) -> jax.Array:
        reduced = bps.push_pull({"a": x, "b": 2 * x}, False, name, axis_name=None if check else "d")
        return (reduced["a"] * reduced["b"]).sum()

    summed = _contributions((5,)).sum(0)
    for check, total, of_devices in ((True, summed, 1), (False, summed.sum(0), DEVICES)):

        def of(x: jax.Array, check: bool = check) -> jax.Array:
            return jax.grad(lambda y: loss(y, f"pytree {check}", check))(x)

        gradient = jax.jit(_shard_map(of, check=check, in_specs=P("d"), out_specs=P("d")))(weights)
        # Of 2 s^2, from both workers, and from all devices where these reduce.
        np.testing.assert_array_equal(gradient, 2 * of_devices * 4 * total * np.ones_like(weights))


def _devices_apart() -> None:
    """Without an axis each device meets the same device of the other workers."""
    bps.init()
    given = _contributions((5,))
    for turn in range(3):
        apart = _shard_map(lambda x: bps.push_pull(x, False, "apart"), in_specs=P("d"), out_specs=P("d"))
        np.testing.assert_array_equal(jax.jit(apart)(turn + given[bps.rank()]), 2 * turn + given.sum(0))
    sent = _shard_map(lambda x: bps.broadcast(x, 1, "sent"), in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.jit(sent)(given[bps.rank()]), given[1])


def _gradients() -> None:
    bps.init()
    rank = bps.rank()
    weights = _contributions((5,))

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return (bps.push_pull(x[0], False, "x", axis_name="d") * w[0]).sum()[None]

    def total(x: jax.Array) -> jax.Array:
        return _shard_map(loss, in_specs=P("d"), out_specs=P("d"))(x, weights[rank]).sum()

    gradient = jax.jit(jax.grad(total))(np.ones((DEVICES, 5), np.float32))
    np.testing.assert_allclose(gradient, np.broadcast_to(weights.sum((0, 1)), (DEVICES, 5)))


def _optimizer() -> None:
    """Workers times devices train as one device on the whole batch."""
    bps.init()
    rank = bps.rank()
    x = _contributions((3, 4)).reshape(2, -1, 4) / 3
    y = x.sum(-1) + 1
    params = {"w": jnp.zeros(4), "b": jnp.zeros(())}

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    def train(optimizer: Any, wrap: Callable[..., Any], x: np.ndarray, y: np.ndarray) -> Any:
        def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
            return optax.apply_updates(params, updates), state

        run = jax.jit(wrap(step))
        now, state = params, optimizer.init(params)
        for _ in range(10):
            now, state = run(now, state, x, y)
        return now

    mapped = partial(_shard_map, in_specs=(P(), P(), P("d"), P("d")), out_specs=P())
    mine = train(bps.DistributedOptimizer(optax.adam(0.1), axis_name="d"), mapped, x[rank], y[rank])
    whole = train(optax.adam(0.1), lambda f: f, x.reshape(-1, 4), y.reshape(-1))
    jax.tree_util.tree_map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), mine, whole)
    for leaf in jax.tree_util.tree_leaves(mine):
        assert np.asarray(bps.broadcast(np.asarray(leaf), 0)).tobytes() == np.asarray(leaf).tobytes()


def _checked() -> None:
    """With the check, as by default: it knows that devices have tensors of their own."""
    bps.init()
    given = _contributions((1,)).reshape(2, DEVICES)
    mine, total = given[bps.rank()], given.sum(0)

    def checked(f: Callable[..., Any], *specs: Any, out: Any = None) -> Callable[..., Any]:
        devices = P("d")
        return jax.jit(_shard_map(f, check=True, in_specs=specs or devices, out_specs=devices if out is None else out))

    def add(x: jax.Array, name: str) -> jax.Array:
        return bps.push_pull(x, False, name)

    def squares(x: jax.Array) -> jax.Array:
        return add(x**2, "squares")

    gradient = jax.grad(lambda x: _shard_map(squares, check=True, in_specs=P("d"), out_specs=P("d"))(x).sum())
    np.testing.assert_array_equal(jax.jit(gradient)(mine), 2 * 2 * mine)
    looped = checked(lambda x: jax.lax.scan(lambda c, _: (add(c, "looped"), None), x, None, length=2)[0])
    np.testing.assert_array_equal(looped(mine), 2 * total)
    sent = checked(lambda x: jax.lax.scan(lambda c, _: (bps.broadcast(c, 1, "sent"), None), x, None, length=2)[0])
    np.testing.assert_array_equal(sent(mine), given[1])
    chosen = checked(lambda x: jax.lax.cond(x.sum() > 0, lambda y: add(y, "chosen"), lambda y: y, x))
    np.testing.assert_array_equal(chosen(mine), total)
    # What is the same on all devices is so no more when workers have added to it.
    scaled = checked(lambda x, w: add(w, "scale") * x, P("d"), P())
    np.testing.assert_array_equal(scaled(mine, np.float32(3)), 6 * mine)
    both = checked(lambda x: jax.tree_util.tree_map(lambda y: y + 1, bps.push_pull([x, x + 1], False, "both")))
    np.testing.assert_array_equal(both(mine), [total + 1, total + 3])
    try:
        checked(lambda x: add(x, "replicated"), out=P())(mine)
    except ValueError as error:
        assert "out_specs" in str(error), error
    else:
        raise AssertionError("an output that differs between devices was taken as the same on all")


def _outside_of_programs() -> None:
    """What a program has left on all devices is reduced as one array; parts of an array are refused."""
    bps.init()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    same = jax.device_put(jnp.arange(3.0) + bps.rank(), NamedSharding(mesh, P()))
    for result in (bps.push_pull(same, False, "same"), bps.broadcast(same, 1, "same too") * 2 - 1):
        np.testing.assert_array_equal(result, 2 * np.arange(3.0) + 1)
        assert result.sharding.is_fully_replicated and len(result.devices()) == DEVICES
    parts = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
    try:
        bps.push_pull(parts, name="parts")
    except ValueError as error:
        assert "parts lies in parts on 4 devices" in str(error), error
    else:
        raise AssertionError("parts of an array were taken")


def _parameters_stay_where_they_are() -> None:
    bps.init()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    sharded = jax.device_put(jnp.arange(8.0) * bps.rank(), NamedSharding(mesh, P("d")))
    copied = jax.device_put(jnp.ones(3) * bps.rank(), NamedSharding(mesh, P()))
    result = bps.broadcast_parameters([sharded, copied], 1)
    np.testing.assert_array_equal(result[0], np.arange(8.0))
    np.testing.assert_array_equal(result[1], np.ones(3))
    assert result[0].sharding == sharded.sharding and result[1].sharding == copied.sharding


def _parameters_go_on_as_those_of_the_root() -> None:
    """What is bound to no device can go into a program of several devices on every rank, not on the root alone."""
    bps.init()
    rank = bps.rank()
    given = {
        "free": jnp.full(3, rank + 1.0, jnp.float32),
        "key": jax.random.key(rank),
        "bound": jax.device_put(jnp.float32(rank), jax.devices()[1]),
        "elsewhere": _on_second_device(rank),
        "weak": jnp.asarray(2.0 * rank),
        "weak rows": jnp.full((2, 2), 1.0 * rank),
    }
    for root in (0, 1):
        result = bps.broadcast_parameters(given, root)
        assert result["weak"].weak_type and result["weak rows"].weak_type and not result["free"].weak_type
        # A weak float32 leaves float16 alone.
        assert (jnp.ones(2, jnp.float16) * result["weak"]).dtype == jnp.float16
        np.testing.assert_array_equal(result["weak rows"], np.full((2, 2), root))
        assert result["weak"] == 2 * root
        assert [result[name].devices() for name in given] == [leaf.devices() for leaf in given.values()]
        add = _shard_map(lambda x, *more: sum(more, x), in_specs=(P("d"), P(), P(), P()), out_specs=P("d"))
        rows = np.zeros((DEVICES, 3), np.float32)
        free = (result["free"], result["elsewhere"], result["weak"])
        np.testing.assert_array_equal(jax.jit(add)(rows, *free), rows + root + 1 + 3 * root)
        draw = _shard_map(lambda x, key: x + jax.random.uniform(key, (3,)), in_specs=(P("d"), P()), out_specs=P("d"))
        expected = rows + np.asarray(jax.random.uniform(jax.random.key(root), (3,)))
        np.testing.assert_array_equal(jax.jit(draw)(rows, result["key"]), expected)
        # What was bound still is.
        try:
            jax.jit(add)(rows, result["bound"], result["weak"], result["weak"])
        except ValueError as error:
            assert "incompatible devices" in str(error), error
        else:
            raise AssertionError("a leaf that was bound to a device came back without that")


def _on_second_device(rank: int) -> jax.Array:
    with jax.default_device(jax.devices()[1]):
        return jnp.full(3, 1.0 * rank, jnp.float32)


def _all() -> None:
    for body in (
        _over_devices_and_workers,
        _numbers_of_few_bits,
        _gradients_of_pytrees,
        _devices_apart,
        _gradients,
        _optimizer,
        _checked,
        _outside_of_programs,
        _parameters_stay_where_they_are,
        _parameters_go_on_as_those_of_the_root,
    ):
        body()
        bps.shutdown()


def test_four_devices_in_each_of_two_workers(run_workers: RunWorkers) -> None:
    run_workers(_all, BYTEPS_OP_TIMEOUT="120", XLA_FLAGS=_FLAGS)


def _devices_that_differ() -> str:
    """Rank 1 has half as many, and arrays of twice the size, so that the bytes of some parts would fit."""
    bps.init()
    mesh = Mesh(np.array(jax.devices()[: DEVICES // (1 + bps.rank())]), ("d",))
    reduce = jax.pmap(
        lambda x: bps.push_pull(x, False, "x", axis_name="d"), axis_name="d", devices=list(mesh.devices.flat)
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED") as caught:
        jax.block_until_ready(reduce(jnp.ones((mesh.size, 8 * (1 + bps.rank())))))
    bps.barrier("the end", timeout=60)
    return str(caught.value)


def test_workers_with_other_numbers_of_devices(run_workers: RunWorkers) -> None:
    messages = run_workers(_devices_that_differ, XLA_FLAGS=_FLAGS, BYTEPS_OP_TIMEOUT="5").results
    assert "x of 4 devices" in messages[0] and "rank 1" in messages[0], messages[0]
    assert "x of 2 devices" in messages[1] and "rank 0" in messages[1], messages[1]
