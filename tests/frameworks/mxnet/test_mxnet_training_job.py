"""DistributedTrainer, DistributedOptimizer, the key-value stores and broadcast_parameters: two workers train as one
process does on the double batch, and have the same bits."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

mx = framework("mxnet")

import byteps.horovod.mxnet as hvd
import byteps.mxnet as bps
import byteps.mxnet.functions
import numpy as np
from byteps.mxnet.ops import broadcast_
from jobs import Outcomes
from mxnet.gluon import nn

RunWorkers = Callable[..., Any]
Weights = list[np.ndarray]


def _data() -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    generator = np.random.default_rng(1)
    return mx.nd.array(generator.standard_normal((16, 6))), mx.nd.array(generator.standard_normal((16, 1)))


def _net(seed: int, in_units: int = 6) -> nn.Sequential:
    """in_units 0: known when the first batch comes."""
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, activation="tanh", in_units=in_units), nn.Dense(1, in_units=5))
    net.initialize(mx.init.Xavier(), force_reinit=True)
    return net


def _weights(net: nn.Sequential) -> Weights:
    return [param.data().asnumpy() for _, param in sorted(net.collect_params().items())]


def _train(net: nn.Sequential, trainer: mx.gluon.Trainer, rows: slice, step_size: int, steps: int = 5) -> Weights:
    x, y = _data()
    criterion = mx.gluon.loss.L2Loss()
    for _ in range(steps):
        with mx.autograd.record():
            loss = criterion(net(x[rows]), y[rows])
        loss.backward()
        trainer.step(step_size)
    return _weights(net)


def _alone(optimizer: str, options: dict[str, Any], in_units: int = 6) -> Weights:
    net = _net(0, in_units)
    return _train(net, mx.gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None), slice(None), 16)


def _mine() -> slice:
    return slice(8 * bps.rank(), 8 * bps.rank() + 8)


def _compare(mine: Weights, whole: Weights, tolerance: float = 1e-5) -> None:
    for index, (a, b) in enumerate(zip(mine, whole)):
        theirs = bps.broadcast(mx.nd.array(a, dtype=a.dtype), 0, name=f"compare {index}").asnumpy()
        assert theirs.tobytes() == a.tobytes(), "the ranks differ"
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


OPTIMIZERS = [("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}), ("adam", {"learning_rate": 0.01})]


def _distributed_trainer() -> None:
    bps.init()
    for optimizer, options in OPTIMIZERS:
        for in_units in (6, 0):
            net = _net(bps.rank(), in_units)
            trainer = bps.DistributedTrainer(net.collect_params(), optimizer, dict(options))
            _compare(_train(net, trainer, _mine(), 8), _alone(optimizer, options, in_units))
    net = _net(bps.rank())
    trainer = bps.DistributedTrainer(
        net.collect_params(), mx.optimizer.create("sgd", learning_rate=0.1), gradient_predivide_factor=2.0
    )
    _compare(_train(net, trainer, _mine(), 8), _alone("sgd", {"learning_rate": 0.1}))
    net = _net(bps.rank())
    half = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, compression_params={"fp16": True}
    )
    mine = _train(net, half, _mine(), 8)
    _compare(mine, _alone("sgd", {"learning_rate": 0.1}), 1e-2)
    with pytest.raises(AssertionError):
        _compare(mine, _alone("sgd", {"learning_rate": 0.1}), 1e-7)


def _clipped() -> None:
    """allreduce_grads and update, with something between."""
    bps.init()
    x, y = _data()
    nets = _net(bps.rank()), _net(0)
    trainers = (
        bps.DistributedTrainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.1}),
        mx.gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None),
    )
    criterion = mx.gluon.loss.L2Loss()
    for _ in range(3):
        for net, trainer, rows, size, share in zip(nets, trainers, (_mine(), slice(None)), (8, 16), (2.0, 1.0)):
            with mx.autograd.record():
                loss = criterion(net(x[rows]), y[rows])
            loss.backward()
            trainer.allreduce_grads()
            # The gradients of a DistributedTrainer are sums over workers, of sums over the batch.
            mx.gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 0.5)
            trainer.update(size * share if size == 8 else size)
    _compare(_weights(nets[0]), _weights(nets[1]), 0.5)
    for net in nets[:1]:
        norm = np.sqrt(sum((p.grad().asnumpy() ** 2).sum() for p in net.collect_params().values()))
        assert norm <= 0.5001


def _key_value_stores() -> None:
    bps.init()
    for kvstore in ("byteps", "dist_byteps", "object"):
        for optimizer, options in OPTIMIZERS:
            net = _net(bps.rank())
            store = mx.kv.create("byteps") if kvstore == "object" else kvstore
            trainer = mx.gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=store)
            _compare(_train(net, trainer, _mine(), 16), _alone_from_first_step(optimizer, options))
            assert isinstance(trainer._kvstore, bps.BytePS), "MXNet leaves a store out that it takes for a local one"

    store = mx.kv.create("byteps")
    assert (store.type, store.rank, store.num_workers) == ("byteps", bps.rank(), 2)
    for name in ("dist_byteps", "dist_sync_byteps"):
        store = mx.kv.create(name)
        # Module looks for "dist" and "_sync", Trainer for "dist" and "async".
        assert (type(store), store.type) == (bps.Dist_BytePS, "dist_sync_byteps")
    store = mx.kv.create("byteps")
    value, out = mx.nd.full((3,), bps.rank() + 1), mx.nd.zeros((3,))
    store.pushpull("a", value, out=out)
    assert out.asnumpy().tolist() == [3, 3, 3] and value.asnumpy().tolist() == [bps.rank() + 1] * 3
    store.pushpull(["a", "b"], [value, value.copy()])
    assert value.asnumpy().tolist() == [3, 3, 3]
    contexts = [mx.nd.full((2,), 1.0, ctx=mx.cpu(n)) for n in range(2)]
    store.pushpull(3, contexts)
    assert [array.asnumpy().tolist() for array in contexts] == [[4, 4], [4, 4]]
    outs = [mx.nd.zeros((2,), ctx=mx.cpu(n)) for n in range(2)]
    store.broadcast(4, mx.nd.full((2,), 7.0 + bps.rank()), out=outs)
    assert [array.asnumpy().tolist() for array in outs] == [[7, 7], [7, 7]]
    store.set_gradient_compression({"fp16": True})
    value = mx.nd.array([1 + 2.0**-20])
    store.pushpull(5, value)
    assert value.asscalar() == 2
    with pytest.raises(NotImplementedError, match="onebit"):
        store.set_gradient_compression({"compressor": "onebit"})
    for name in ("byteps", "dist_byteps"):
        _what_it_has_not(mx.kv.create(name))


def _what_it_has_not(store: Any) -> None:
    one = mx.nd.ones((1,))
    for call in (
        lambda: store.push("a", one),
        lambda: store.pull("a", out=one),
        lambda: store.row_sparse_pull("a", out=one, row_ids=one),
    ):
        with pytest.raises(NotImplementedError, match=rf'"{store.type}" has no \w*(push|pull).*call pushpull\('):
            call()
    for call in (
        lambda: store.set_optimizer(mx.optimizer.create("sgd")),
        lambda: store.save_optimizer_states("states"),
        lambda: store.load_optimizer_states("states"),
    ):
        with pytest.raises(NotImplementedError, match=rf'"{store.type}" has no \w+_optim.*update_on_kvstore=False'):
            call()
    for keys, values in ((4, one), ([4, 5], [one, one])):
        with pytest.raises(TypeError, match=r"4.* has no out; .*init\(key, value\)"):
            store.broadcast(keys, values, None)


def _alone_from_first_step(optimizer: str, options: dict[str, Any]) -> Weights:
    """A Trainer with a store sends the parameters of rank 0 in its first step, after the first backward pass: its first
    gradients are those of each rank's own parameters."""
    x, y = _data()
    nets = [_net(seed) for seed in (0, 1)]
    criterion = mx.gluon.loss.L2Loss()
    for rank, net in enumerate(nets):
        with mx.autograd.record():
            loss = criterion(net(x[8 * rank : 8 * rank + 8]), y[8 * rank : 8 * rank + 8])
        loss.backward()
    for first, second in zip(*(sorted(net.collect_params().items()) for net in nets)):
        grad = first[1].grad()
        grad += second[1].grad()
    trainer = mx.gluon.Trainer(nets[0].collect_params(), optimizer, dict(options), kvstore=None)
    trainer.step(16)
    return _train(nets[0], trainer, slice(None), 16, steps=4)


def _module() -> None:
    """The classic interface, with DistributedOptimizer and with a store."""
    bps.init()

    def fit(
        rank: int, rows: slice, batch: int, seed: int, optimizer: Any, kvstore: Any, optimizer_params: Any = ()
    ) -> Weights:
        generator = np.random.default_rng(1)
        x, y = generator.standard_normal((16, 6)), generator.standard_normal((16, 1))
        data = mx.io.NDArrayIter(x[rows], y[rows], batch, label_name="label")
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc")
        module = mx.mod.Module(mx.sym.LinearRegressionOutput(net, mx.sym.Variable("label")), label_names=["label"])
        module.bind(data.provide_data, data.provide_label)
        mx.random.seed(seed)
        module.init_params(mx.init.Xavier())
        arguments, _ = module.get_params()
        if rank >= 0 and kvstore is None:  # a store begins with rank 0's values by itself
            bps.broadcast_parameters(arguments)
            module.set_params(arguments, {})
        module.fit(data, num_epoch=4, optimizer=optimizer, kvstore=kvstore, optimizer_params=optimizer_params)
        arguments, _ = module.get_params()
        return [arguments[name].asnumpy() for name in sorted(arguments)]

    def sgd(batch: int) -> mx.optimizer.Optimizer:
        return mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / batch)

    whole = fit(-1, slice(None), 16, 0, sgd(16), None)
    wrapped = bps.DistributedOptimizer(sgd(8))
    assert wrapped.learning_rate == 0.1 and isinstance(wrapped, mx.optimizer.Optimizer)
    _compare(fit(bps.rank(), _mine(), 8, bps.rank(), wrapped, None), whole)
    wrapped.set_learning_rate(0.5)
    assert wrapped.learning_rate == 0.5
    for store in ("byteps", "dist_byteps"):
        _compare(fit(bps.rank(), _mine(), 8, bps.rank(), sgd(16), store), whole)
    # Module makes the optimizer, and divides by the batch of all workers, or by what it is told.
    for store, told in (("dist_byteps", {}), ("byteps", {"rescale_grad": 1 / (8 * bps.size())})):
        for given in (store, mx.kv.create(store)):
            options = {"learning_rate": 0.1, **told}
            _compare(fit(bps.rank(), _mine(), 8, bps.rank(), "sgd", given, options), whole)


def _a_batch_that_fails() -> None:
    """On one rank alone: all hear so, and train on together."""
    bps.init()
    rank = bps.rank()
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for step in range(6):
        failing = step in (1, 3)
        try:
            with mx.autograd.record():
                # Of a matrix that is not positive definite potrf fails, when the engine runs it.
                given = mx.nd.array([[1, 2], [2, 1]] if failing and rank == 1 else [[1 + rank, 0], [0, 1 + step]])
                loss = net(mx.nd.linalg.potrf(given)).sum()
            loss.backward()
            trainer.step(1)
            mx.nd.waitall()
            assert not failing
        except mx.base.MXNetError as error:
            assert failing and ("potrf" in str(error) or "gave up: what computes its input" in str(error)), error
            for _ in range(10):
                try:
                    mx.nd.waitall()
                    break
                except mx.base.MXNetError:
                    pass
            else:
                raise AssertionError("there is one error more each time") from error
            bps.broadcast_parameters(net.collect_params())
        weights = net.weight.data()
        both = bps.allgather(weights, name="weights").asnumpy()
        assert np.array_equal(both[0], both[1]), step


def _broadcast_parameters() -> None:
    bps.init()
    for root in (0, 1):
        arrays = {"b": mx.nd.full((3,), bps.rank()), "a": mx.nd.full((2, 2), bps.rank(), dtype="float64")}
        bps.broadcast_parameters(arrays, root)
        assert all((array.asnumpy() == root).all() for array in arrays.values())
        for in_units in (6, 0):
            net = _net(bps.rank(), in_units)
            bps.broadcast_parameters(net.collect_params(), root)
            net(mx.nd.ones((1, 6)))
            wanted = _net(root, in_units)
            wanted(mx.nd.ones((1, 6)))
            for mine, theirs in zip(_weights(net), _weights(wanted)):
                assert mine.tobytes() == theirs.tobytes()
            net.initialize(mx.init.One(), force_reinit=True)
            assert (next(iter(net.collect_params(".*weight").values())).data().asnumpy() == 1).all(), "once"
    assert bps.broadcast_object([bps.rank()], 1) == [1]


def _deferred(contexts: list[mx.Context] | None = None) -> nn.HybridSequential:
    """A net whose first layer's shape the first batch tells; the parameters of each rank are its rank at first."""
    net = nn.HybridSequential(prefix="later_")
    with net.name_scope():
        net.add(nn.Dense(2), nn.Dense(1, in_units=2))
    net.initialize(mx.init.Constant(bps.rank()), ctx=contexts)
    return net


def _one_step(net: nn.Sequential, trainer: mx.gluon.Trainer, contexts: list[mx.Context]) -> None:
    """By gradients that are the same on all ranks; all parameters are the same before and after."""
    with mx.autograd.record():
        losses = [net(mx.nd.ones((1, 3), ctx=context)).sum() for context in contexts]
    mx.autograd.backward(losses)
    for again in range(2):
        for param in net.collect_params().values():
            theirs = bps.broadcast(param.list_data()[0], 0).asnumpy()
            for mine in param.list_data():
                np.testing.assert_array_equal(mine.asnumpy(), theirs)
        if not again:
            trainer.step(1)


def _shapes_known_later() -> None:
    """broadcast_parameters and a trainer of the same parameters: in both orders, and both twice."""
    bps.init()
    one, two = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]
    trainers: list[Callable[[Any], mx.gluon.Trainer]] = [
        lambda params: bps.DistributedTrainer(params, "sgd"),
        lambda params: hvd.DistributedTrainer(params, "sgd"),
        lambda params: mx.gluon.Trainer(params, "sgd", kvstore="byteps"),
    ]
    for make_trainer in trainers:
        for order in ("broadcast, trainer", "trainer, broadcast", "broadcast, broadcast, trainer"):
            for contexts in (one, two):
                net = _deferred(contexts)
                if contexts is two:
                    net.hybridize()
                for step in order.split(", "):
                    if step == "trainer":
                        trainer = make_trainer(net.collect_params())
                    else:
                        bps.broadcast_parameters(net.collect_params(), root_rank=1)
                _one_step(net, trainer, contexts)
                net.initialize(mx.init.One(), ctx=contexts, force_reinit=True)
                assert all((data == 1).asnumpy().all() for data in net[0].weight.list_data())
                _one_step(net, trainer, contexts)


def _each_broadcast_runs_once() -> None:
    bps.init()
    names: list[str] = []

    def note(tensor: mx.nd.NDArray, root_rank: int, name: str, **options: Any) -> mx.nd.NDArray:
        names.append(name)
        return broadcast_(tensor, root_rank, name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byteps.mxnet.functions, "broadcast_", note)
        net = _deferred()
        bps.broadcast_parameters(net[0].collect_params())
        bps.DistributedTrainer(net[0].collect_params(), "sgd", prefix="trainer.")
        # Those whose shapes are known.
        assert names == ["parameter.later_dense0_bias", "trainer.parameter.000000.later_dense_bias"]
        names.clear()
        net.initialize(mx.init.Constant(bps.rank()), force_reinit=True)
        assert names == []
        for _ in range(2):
            net(mx.nd.ones((1, 3)))
            assert names == ["parameter.later_dense0_weight", "trainer.parameter.000001.later_dense_weight"]
        net.initialize(mx.init.One(), force_reinit=True)
        net(mx.nd.ones((1, 3)))
        assert len(names) == 2
        # What held the broadcasts back is gone.
        assert "_init_impl" not in vars(net[0].weight)


def _one_rank_loads_parameters() -> None:
    """The shapes are known on rank 0 before the first batch, by a file: before or after the broadcasts are asked for;
    on the other rank they come with the batch."""
    bps.init()
    saved = _deferred()
    saved.initialize(mx.init.Constant(7), force_reinit=True)
    saved(mx.nd.ones((1, 3)))
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/parameters"
        saved.save_parameters(file)
        for early in (True, False):
            net = _deferred()
            if bps.rank() == 0 and early:
                net.load_parameters(file)
            bps.broadcast_parameters(net.collect_params())
            trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
            if bps.rank() == 0 and not early:
                net.load_parameters(file)
            net(mx.nd.ones((1, 3)))
            assert (net[0].weight.data() == 7).asnumpy().all()
            if early:  # Else those of known shapes were on their way before rank 0 has read its file.
                _one_step(net, trainer, [mx.cpu(0)])


def _attributes_of_the_optimizer() -> None:
    """What is set on a DistributedOptimizer the one inside has."""
    bps.init()
    inner = mx.optimizer.create("sgd", learning_rate=1.0)
    optimizer = bps.DistributedOptimizer(inner)
    optimizer.rescale_grad = 1 / 32
    optimizer.lr_mult = {0: 0.5}
    optimizer.idx2name = {0: "weight"}
    assert (inner.rescale_grad, inner.lr_mult, inner.idx2name) == (1 / 32, {0: 0.5}, {0: "weight"})
    weight = mx.nd.zeros(2)
    for each in (optimizer, pickle.loads(pickle.dumps(optimizer))):
        each.update(0, weight, mx.nd.full(2, 64 * bps.rank()), None)
    assert weight.asnumpy().tolist() == [-1, -1]  # twice the learning rate times 0.5 times 32 / 32
    assert optimizer.num_update == inner.num_update == 1


def _layers_with_other_numbers() -> tuple[list[float], Callable[[float], list[float]]]:
    """Rank 1 has made ten layers before: its last ones are dense10 and more, which Gluon sorts before dense9. The
    weights to start with; and a step of this size, whose gradient of the weight of layer i is i."""
    bps.init()
    start = 90 if bps.rank() == 0 else 95
    layers = [nn.Dense(1, in_units=1, prefix=f"many{start + index}_") for index in range(8)]
    net = nn.Sequential(prefix="")
    net.add(*layers)
    for index, layer in enumerate(layers):
        layer.initialize(mx.init.Constant(index + 10 * bps.rank()))
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, prefix="numbers.")
    weights = [layer.weight.data() for layer in layers]

    def step(size: float) -> list[float]:
        with mx.autograd.record():
            loss = sum(layer(mx.nd.full((1, 1), size * index)) for index, layer in enumerate(layers))
        loss.backward()
        trainer.step(1)
        return [float(weight.asscalar()) for weight in weights]

    return [float(weight.asscalar()) for weight in weights], step


def _names_with_other_numbers() -> None:
    begun, step = _layers_with_other_numbers()
    assert begun == list(range(8))
    assert step(1.0) == [0.0] * 8


def _names_with_other_numbers_asynchronously() -> None:
    begun, step = _layers_with_other_numbers()
    assert begun == list(range(8))
    step(1.0)
    bps.barrier()
    assert step(0.0) == [float(-index) for index in range(8)]  # what both have taken away


def _layers_of(worker: str) -> Any:
    """Whose names are those of this worker alone."""
    net = nn.Sequential(prefix=f"{worker}net_")
    with net.name_scope():
        net.add(nn.Dense(1, in_units=1))
    net.initialize()
    return net.collect_params()


def _other_parameters_are_an_error() -> None:
    """At once, and no mixture of both. With a prefix of its own a trainer may be made while others are not yet."""
    bps.init()
    mine = f"worker{'AB'[bps.rank()]}"
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byteps.mxnet.functions, "broadcast_", lambda tensor, root, name, **options: names.append(name))
        with pytest.raises(
            ValueError, match=rf"parameters differ.* 0\.{mine}net_dense_bias, 1\.{mine}net_dense_weight"
        ):
            bps.DistributedTrainer(_layers_of(mine), "sgd")
        assert names == []
        order = ("different.", "same.") if bps.rank() == 0 else ("same.", "different.")
        trainers = {}
        for prefix in order:
            params = _layers_of("all" if prefix == "same." else mine)
            trainers[prefix] = bps.DistributedTrainer(params, "sgd", prefix=prefix)
        assert f"different.parameter.000001.{mine}net_dense_weight" in names
        for step in (trainers["different."].step, trainers["different."].update):
            with pytest.raises(ValueError, match=f"parameters differ.*{mine}net_dense_bias"):
                step(1)
        trainers["same."].step(1, ignore_stale_grad=True)


def _list_whose_order_differs() -> None:
    """A list that is sorted by name has another layer at the same place, where one of rank 0's is dense10."""
    bps.init()
    first = 9 + bps.rank()
    layers = [nn.Dense(1, in_units=1, prefix=f"dense{first + index}_") for index in range(2)]
    for index, layer in enumerate(layers):
        layer.initialize(mx.init.Constant(index + 1))
    in_dict = {param.name: param for layer in layers for param in layer.collect_params().values()}

    def step(params: Any, **options: Any) -> list[float]:
        trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, **options)
        with mx.autograd.record():
            loss = sum(layer(mx.nd.full((1, 1), index)) for index, layer in enumerate(layers))
        loss.backward()
        trainer.step(1)
        return [float(layer.weight.data().asscalar()) for layer in layers]

    with pytest.raises(ValueError, match=r"sorted by names.*this rank: dense10_bias.*collect_params"):
        step([in_dict[name] for name in sorted(in_dict)])
    with pytest.raises(ValueError, match=r"sorted by names.*this rank: dense10_bias.*collect_params"):
        step([in_dict[name] for name in sorted(in_dict)], prefix="sorted.")
    assert step([layer.weight for layer in layers]) == [1.0, 1.0]  # the order is the program's
    assert step(in_dict) == [1.0, 0.0]


def _store_whose_order_differs() -> None:
    """Gluon's key of a parameter is its place. On rank 0 the second layer, dense10, has the first place."""
    bps.init()
    first = 9 + bps.rank()
    for store in ("byteps", "dist_byteps", mx.kv.create("byteps")):
        layers = [nn.Dense(1, in_units=1, prefix=f"dense{first + index}_") for index in range(2)]
        for index, layer in enumerate(layers):
            layer.initialize(mx.init.Constant(index + 1))
        in_dict = {param.name: param for layer in layers for param in layer.collect_params().values()}
        in_list = [layer.weight for layer in layers]

        def step(params: Any, store: Any = store, layers: Any = layers) -> list[float]:
            trainer = mx.gluon.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store)
            with mx.autograd.record():
                loss = sum(layer(mx.nd.full((1, 1), index)) for index, layer in enumerate(layers))
            loss.backward()
            trainer.step(2)
            return [float(layer.weight.data().asscalar()) for layer in layers]

        with pytest.raises(ValueError, match=r"different orders.*this rank: dense10_bias"):
            step(in_dict)
        assert step(in_list) == [1.0, 1.0]  # the order is the program's
        with pytest.raises(ValueError, match=r"differ in number, name or order.*Make the same blocks"):
            step(in_list[: 1 + bps.rank()])


def _stale_gradients() -> None:
    """A parameter is updated on all ranks if any has used it, else on none."""
    bps.init()
    for apart in (False, True):
        net = [nn.Dense(1, in_units=1, use_bias=False, prefix=f"stale{index}_") for index in range(3)]
        for layer in net:
            layer.initialize(mx.init.One())
        params = {layer.weight.name: layer.weight for layer in net}
        trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 1.0, "wd": 0.5})

        def step(*used: int, apart: bool = apart, net: Any = net, trainer: Any = trainer) -> list[float]:
            with mx.autograd.record():
                loss = sum(net[index](mx.nd.ones((1, 1))) for index in used)
            loss.backward()
            if apart:
                trainer.allreduce_grads()
                trainer.update(1, ignore_stale_grad=True)
            else:
                trainer.step(1, ignore_stale_grad=True)
            return [float(layer.weight.data().asscalar()) for layer in net]

        # Gradient and decay: of layer 0 on both ranks, of layer 1 on rank 1 alone; none of layer 2.
        assert step(*range(bps.rank() + 1)) == [-0.5, 0, 1]
        found = step(*range(bps.rank() + 1))
        assert bps.broadcast_object(found, 0) == found
        if not apart:
            assert found == [-1.25, -0.5, 1]


def _goes_on_alone_with_stale_gradients() -> None:
    """Rank 0 has no data left while rank 1 takes one step more: it counts as one without gradients."""
    bps.init()
    net = [nn.Dense(1, in_units=1, use_bias=False, prefix=f"alone{index}_") for index in range(2)]
    for layer in net:
        layer.initialize(mx.init.One())
    params = {layer.weight.name: layer.weight for layer in net}
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    for _ in range(bps.rank() + 1):
        with mx.autograd.record():
            loss = net[0](mx.nd.ones((1, 1))).sum()
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    mx.nd.waitall()
    assert bps.join() == 1
    found = [float(layer.weight.data().asscalar()) for layer in net]
    assert found == [-0.5 * bps.rank(), 1.0]


def _wrong_arguments() -> None:
    net = _net(0)
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.DistributedTrainer(net.collect_params(), "sgd")
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.DistributedOptimizer(mx.optimizer.create("sgd"))
    bps.init()
    with pytest.raises(TypeError, match="Optimizer"):
        bps.DistributedOptimizer("sgd")
    with pytest.raises(NotImplementedError, match="topk"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={"compressor": "topk", "k": 3})
    # Of BytePS's example for CIFAR-100, without a compressor.
    unasked = {"compressor": "", "ef": "", "momentum": "", "scaling": False, "k": 1.0, "seed": 3}
    bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={**unasked, "fp16": False})
    for asked in ({"ef": "vanilla"}, {"momentum": "nesterov"}):
        with pytest.raises(NotImplementedError, match="compresses to float16 alone"):
            bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={**unasked, **asked})
    with pytest.raises(ValueError, match="unknown"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={"compresor": "topk"})
    for factor in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="gradient_predivide_factor"):
            bps.DistributedTrainer(net.collect_params(), "sgd", gradient_predivide_factor=factor)
        with pytest.raises(ValueError, match="gradient_predivide_factor"):
            bps.DistributedOptimizer(mx.optimizer.create("sgd"), gradient_predivide_factor=factor)
    with pytest.warns(UserWarning, match="DistributedOptimizer"):
        bps.DistributedTrainer(net.collect_params(), bps.DistributedOptimizer(mx.optimizer.create("sgd")))


BODIES = [
    _distributed_trainer,
    _clipped,
    _key_value_stores,
    _module,
    _a_batch_that_fails,
    _broadcast_parameters,
    _shapes_known_later,
    _each_broadcast_runs_once,
    _one_rank_loads_parameters,
    _attributes_of_the_optimizer,
    _names_with_other_numbers,
    _list_whose_order_differs,
    _other_parameters_are_an_error,
    _store_whose_order_differs,
    _stale_gradients,
    _goes_on_alone_with_stale_gradients,
    _wrong_arguments,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


# Engines and training in which a rank waits for each operation before it starts the next: the order counts.


def test_names_with_other_numbers_on_the_naive_engine(run_workers: RunWorkers) -> None:
    run_workers(_names_with_other_numbers, MXNET_ENGINE_TYPE="NaiveEngine", BYTEPS_OP_TIMEOUT="60")


def test_names_with_other_numbers_asynchronously(run_workers: RunWorkers) -> None:
    variables = {"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_OP_TIMEOUT": "60"}
    run_workers(_names_with_other_numbers_asynchronously, **variables)
