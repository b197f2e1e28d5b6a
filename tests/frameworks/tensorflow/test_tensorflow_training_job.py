"""What training takes: gradients, variables, sparse tensors, rows, objects, state, over two workers."""

from __future__ import annotations

import functools
import gc
import importlib.util
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from byteps.tensorflow.gradients import Reduction, source_names
from jobs import Outcomes


def _variables() -> list[tf.Variable]:
    """Of values that differ between the ranks."""
    rank = bps.rank()
    return [
        tf.Variable(tf.fill([3, 2], float(rank)), name="weight"),
        tf.Variable(tf.fill([2], 10.0 + rank), name="bias"),
        tf.Variable(rank == 1, name="flag"),
        tf.Variable(tf.constant([rank, 7], tf.uint32), name="seed"),
        tf.Variable(tf.constant([rank + 1j, 2], tf.complex64), name="complex"),
        tf.Variable(rank, dtype=tf.int64, name="iterations"),
    ]


def _broadcast_variables() -> None:
    bps.init()
    for root in (0, 1):
        variables = _variables()
        bps.broadcast_variables(variables, root)
        np.testing.assert_array_equal(variables[0], np.full([3, 2], root))
        np.testing.assert_array_equal(variables[1], [10 + root] * 2)
        assert bool(variables[2].numpy()) == (root == 1)
        np.testing.assert_array_equal(variables[3], [root, 7])
        np.testing.assert_array_equal(variables[4], [root + 1j, 2])
        assert variables[5].numpy() == root
    with pytest.raises(TypeError, match="string"):
        bps.broadcast_variables([tf.Variable(["text"])], 0)
    with pytest.raises(ValueError, match="root_rank is 2"):
        bps.broadcast_variables(variables, 2)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        bps.broadcast_global_variables(0)


def _in_a_function() -> None:
    bps.init()
    variables = _variables()

    @tf.function
    def start() -> None:
        bps.broadcast_variables(variables, 1)

    start()
    np.testing.assert_array_equal(variables[0], np.ones([3, 2]))


def _step(tape_kind: str) -> Callable[..., list[Any]]:
    """The gradients of rank-dependent data: with respect to w they are rank + 1, to b they are 2 * (rank + 1)."""

    def step(w: tf.Variable, b: tf.Variable) -> list[Any]:
        scale = float(bps.rank() + 1)
        if tape_kind == "around":
            with bps.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
                loss = scale * (tf.reduce_sum(w) + 2 * tf.reduce_sum(b))
        else:
            with tf.GradientTape(persistent=True) as tape:
                loss = scale * (tf.reduce_sum(w) + 2 * tf.reduce_sum(b))
            tape = bps.DistributedGradientTape(tape, compression=bps.Compression.fp16)
        assert isinstance(tape, tf.GradientTape)
        gradients = tape.gradient(loss, {"w": w, "b": [b]})
        return [gradients["w"], gradients["b"][0], tape.gradient(loss, w), tape.gradient(loss, [b])[0]]

    return step


def _tape() -> None:
    bps.init()
    w, b = tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))
    for kind in ("around", "behind"):
        for run in (_step(kind), tf.function(_step(kind))):
            gradients = run(w, b)
            for gradient, expected in zip(gradients, ([1.5] * 3, [3] * 2, [1.5] * 3, [3] * 2)):
                np.testing.assert_array_equal(gradient, expected)


def _the_given_tape_stays_plain() -> None:
    """Its gradient is this worker's own, also where the other is made while it records; rank 0 alone may take it."""
    bps.init()
    w = tf.Variable(tf.ones([2]))
    scale = float(bps.rank() + 1)

    def gradients(inside: bool, persistent: bool) -> tuple[Any, Any]:
        given = tf.GradientTape(persistent=persistent)
        with given:
            loss = scale * tf.reduce_sum(w)
            if inside:
                tape = bps.DistributedGradientTape(given)
        if not inside:
            tape = bps.DistributedGradientTape(given)
        assert type(given) is tf.GradientTape
        own = given.gradient(loss, w) if persistent and bps.rank() == 0 else None
        return own, tape.gradient(loss, w)

    def within(persistent: bool) -> tuple[Any, Any]:
        with tf.GradientTape(persistent=persistent) as given:
            loss = scale * tf.reduce_sum(w)
            reduced = bps.DistributedGradientTape(given).gradient(loss, w)
        return None, reduced

    for persistent in (True, False):
        for make in (
            functools.partial(gradients, True, persistent),
            functools.partial(gradients, False, persistent),
            functools.partial(within, persistent),
        ):
            for run in (make, tf.function(make)):
                own, reduced = run()
                np.testing.assert_array_equal(reduced, [1.5, 1.5])
                assert own is None or own.numpy().tolist() == [1.0, 1.0]


def _tape_of_unused_and_local_variables() -> None:
    bps.init()
    w, unused, local = (tf.Variable(tf.ones([2])) for _ in range(3))
    with bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum) as tape:
        loss = float(bps.rank() + 1) * tf.reduce_sum(w * local)
    tape.register_local_source(local)
    gradients = tape.gradient(loss, [w, unused, local])
    np.testing.assert_array_equal(gradients[0], [3, 3])
    assert gradients[1] is None
    np.testing.assert_array_equal(gradients[2], np.full(2, (bps.rank() + 1) / 2))

    layer = tf.keras.layers.Dense(1)
    layer.build((None, 2))
    with bps.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer, scale_local_gradients=False) as tape:
        loss = float(bps.rank() + 1) * tf.reduce_sum(layer(tf.ones([1, 2])))
    np.testing.assert_array_equal(tape.gradient(loss, layer.trainable_variables)[1], [bps.rank() + 1])


def _jacobians_are_local() -> None:
    """In loops, whose iterations would send tensors of one name at the same time."""
    bps.init()
    x = tf.Variable([1.0, 2.0, 3.0])
    scale = float(bps.rank() + 1)

    def jacobians(parallel: bool) -> tuple[Any, Any, Any]:
        with bps.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            y = scale * x * x
            rows = scale * tf.reshape(x, [1, 3]) ** 2
            batch = tf.identity(tf.reshape(x, [1, 3]))
            tape.watch(batch)
            of_batch = scale * batch**2
            loss = tf.reduce_sum(rows)
        options = {"experimental_use_pfor": parallel}
        found = tape.jacobian(y, x, **options), tape.batch_jacobian(of_batch, batch, **options)
        return (*found, tape.gradient(loss, x))

    for parallel in (True, False):
        for run in (jacobians, tf.function(jacobians)):
            whole, of_batch, gradient = run(parallel)
            np.testing.assert_allclose(whole, scale * np.diag([2.0, 4, 6]))
            np.testing.assert_allclose(of_batch, scale * np.diag([2.0, 4, 6])[None])
            # The tape reduces as before.
            np.testing.assert_allclose(gradient, [3.0, 6, 9])


def _local_and_global_gradients() -> None:
    bps.init()
    shared, local, unused = (tf.Variable(tf.ones([2]), name=f"v{bps.rank()}") for _ in range(3))
    with bps.DistributedGradientTape(tf.GradientTape(persistent=True), op=bps.Sum) as tape:
        loss = float(bps.rank() + 1) * tf.reduce_sum(shared * local)
    tape.register_local_source(local)
    # Names of variables that differ between the ranks.
    of_local, of_others = tape.get_local_and_global_gradients(loss, [shared, local, unused], use_generic_names=True)
    assert [source for source, _ in of_local] == [local] and [source for source, _ in of_others] == [shared, unused]
    np.testing.assert_array_equal(of_local[0][1], np.full(2, (bps.rank() + 1) / 2))
    np.testing.assert_array_equal(of_others[0][1], [3, 3])
    assert of_others[1][1] is None


def _a_local_variable_that_is_dropped() -> None:
    bps.init()
    kept = tf.Variable(tf.ones([2]))
    tape = bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum)
    local = tf.Variable(tf.ones([2]))
    lives = weakref.ref(local)
    tape.register_local_source(local)
    del local
    gc.collect()
    # Else another variable may get its id, and would be taken for a local one.
    assert lives() is not None
    with tape:
        loss = tf.reduce_sum(kept)
    np.testing.assert_array_equal(tape.gradient(loss, kept), [2, 2])


def _predivided() -> None:
    bps.init()
    w = tf.Variable(tf.ones([2]))
    with bps.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0) as tape:
        loss = float(bps.rank() + 1) * tf.reduce_sum(w)
    np.testing.assert_array_equal(tape.gradient(loss, w), [1.5, 1.5])
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum, gradient_predivide_factor=2.0)


def _factors_and_groups_that_are_none() -> None:
    bps.init()
    variable = tf.Variable([1.0])

    def tape(**options: Any) -> Any:
        return bps.DistributedGradientTape(tf.GradientTape(), **options)

    def of_version_1(**options: Any) -> Any:
        return bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), **options)

    def of_keras(**options: Any) -> Any:
        return bps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), **options)

    for make in (tape, of_version_1, of_keras):
        for factor in (0, 0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(ValueError, match=r"gradient_predivide_factor is .*positive"):
                make(gradient_predivide_factor=factor)
        with pytest.raises(TypeError, match="gradient_predivide_factor"):
            make(gradient_predivide_factor="two")
        for wrong in ({"num_groups": -1}, {"num_groups": 1.5}, {"num_groups": None}):
            with pytest.raises(ValueError, match="num_groups is"):
                make(**wrong)
        for groups in (-1, True, 0.5, "all", variable, [variable], [[1.0]], [[variable], [variable]]):
            with pytest.raises(ValueError, match=r"groups (is|has)"):
                make(groups=groups)
        make(num_groups=2, groups=[[variable]])
        make(groups=3)


def _sparse() -> None:
    """Rank 0 looks up rows 0 and 1, rank 1 rows 1, 2 and 2."""
    bps.init()
    rank = bps.rank()
    table = tf.Variable(tf.zeros([4, 2]))
    looked_up = [[0, 1], [1, 2, 2]][rank]
    dense = np.zeros([4, 2])
    for row in (0, 1, 1, 2, 2):
        dense[row] += 1

    def gradient(as_dense: bool, op: bps.ReduceOp) -> Any:
        with bps.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=as_dense, op=op) as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, looked_up))
        return tape.gradient(loss, table)

    for run in (gradient, tf.function(gradient)):
        for op, expected in ((bps.Sum, dense), (bps.Average, dense / 2)):
            slices = run(False, op)
            assert isinstance(slices, tf.IndexedSlices)
            assert slices.indices.shape[0] == 5
            np.testing.assert_array_equal(tf.convert_to_tensor(slices), expected)
            whole = run(True, op)
            assert isinstance(whole, tf.Tensor)
            np.testing.assert_array_equal(whole, expected)
    slices = tf.IndexedSlices(tf.ones([2, 2]) * (rank + 1), tf.constant([0, rank]), tf.constant([4, 2]))
    total = bps.push_pull(slices, op=bps.Sum, name="slices", compression=bps.Compression.fp16)
    np.testing.assert_array_equal(tf.convert_to_tensor(total)[:, 0], [4, 2, 0, 0])
    with pytest.raises(ValueError, match="sparse_as_dense"):
        bps.push_pull(slices, op=bps.Max)


def _sparse_on_one_rank_alone() -> None:
    """The other rank's gradient of the same variable is dense: both hear so, long before any deadline."""
    bps.init()
    table = tf.Variable(tf.ones([4, 2]), name="table")
    bias = tf.Variable(tf.ones([2]), name="bias")

    def gradients(as_dense: bool) -> Any:
        with bps.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=as_dense) as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2]) + bias)
        return tape.gradient(loss, [table, bias])

    for run in (gradients, tf.function(gradients)):
        begin = time.monotonic()
        with pytest.raises(tf.errors.FailedPreconditionError, match="table"):
            run(bps.rank() == 1)
        assert time.monotonic() - begin < 30
        slices, dense = run(False)
        np.testing.assert_array_equal(tf.convert_to_tensor(slices), [[0, 0], [1, 1], [1, 1], [0, 0]])
        np.testing.assert_array_equal(dense, [2, 2])


def _sparse_among_others() -> None:
    """Groups of dense tensors and IndexedSlices; what cannot be is an error before anything is sent."""
    bps.init()
    rank = bps.rank()

    def group(**options: Any) -> list[Any]:
        rows = tf.IndexedSlices(tf.ones([1 + rank, 2]) * (rank + 1), tf.range(1 + rank), tf.constant([4, 2]))
        pairs = tf.IndexedSlices(tf.ones([1, 1]) * (rank + 1), tf.constant([0]), tf.constant([2, 1]))
        return bps.grouped_allreduce([rows, tf.ones([3]) * (rank + 1), pairs, tf.ones([])], **options)

    for run in (group, tf.function(group)):
        for options in ({}, {"name": "mixed"}, {"prescale_factor": 2.0}, {"compression": bps.Compression.fp16}):
            factor = options.get("prescale_factor", 1.0)
            rows, three, pairs, one = run(op=bps.Sum, **options)
            assert isinstance(rows, tf.IndexedSlices) and isinstance(pairs, tf.IndexedSlices)
            np.testing.assert_array_equal(tf.convert_to_tensor(rows)[:, 0], factor * np.array([3.0, 2, 0, 0]))
            np.testing.assert_array_equal(three, factor * np.full(3, 3.0))
            np.testing.assert_array_equal(tf.convert_to_tensor(pairs), factor * np.array([[3.0], [0]]))
            assert float(one) == factor * 2
        rows, three, pairs, one = run()
        np.testing.assert_array_equal(tf.convert_to_tensor(rows)[:, 0], [1.5, 1, 0, 0])
        np.testing.assert_array_equal(three, [1.5] * 3)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
    for kind in (ValueError, NotImplementedError):
        for op in (bps.Min, bps.Max, bps.Product, bps.Adasum):
            for call in (
                lambda op: bps.push_pull(slices, op=op),
                lambda op: bps.allreduce(slices, op=op),
                lambda op: bps.grouped_allreduce([tf.ones([2]), slices], op=op),
                tf.function(lambda op: bps.push_pull(slices, op=op)),
            ):
                with pytest.raises(kind, match="sparse_as_dense"):
                    call(op)


def _average_of_integer_slices_is_refused() -> None:
    """Rows would be rounded one by one. On one rank alone: nothing is sent, and no number is used up."""
    bps.init()
    dense = tf.constant([[3], [3]])
    variable, table = tf.Variable([1.0]), tf.Variable([1.0])
    slices = tf.IndexedSlices(dense, tf.constant([0, 0]), tf.constant([1, 1]))
    reduction = Reduction()
    calls: list[Callable[[], Any]] = [
        lambda: bps.push_pull(slices),
        lambda: bps.allreduce(slices, op=bps.Average),
        lambda: bps.grouped_allreduce([tf.ones([2]), slices]),
        lambda: reduction([tf.ones([1]), slices], source_names([variable, table])),
    ]
    for call in calls:
        for run in (call, tf.function(call)):
            if bps.rank() == 0:
                for kind in (ValueError, NotImplementedError):
                    with pytest.raises(kind, match=r"int32 cannot be averaged.*op=Sum.*sparse_as_dense"):
                        run()
    np.testing.assert_array_equal(tf.convert_to_tensor(bps.push_pull(slices, op=bps.Sum)), [[12]])
    np.testing.assert_array_equal(bps.push_pull(tf.convert_to_tensor(slices)), [[6]])
    (found,) = Reduction(sparse_as_dense=True)([slices], source_names([table]))
    np.testing.assert_array_equal(found, [[6]])
    of_complex = tf.IndexedSlices(tf.constant([1 + 2j]) * (1 + bps.rank()), tf.constant([0]), tf.constant([1]))
    np.testing.assert_array_equal(tf.convert_to_tensor(bps.push_pull(of_complex)), [1.5 + 3j])


def _gradient_of_slices() -> None:
    """That of the dense tensor."""
    bps.init()
    weights = tf.constant([[1.0], [10.0]]) * (bps.rank() + 1)
    values = tf.constant([[2.0], [3.0]])

    def gradient(sparse: bool, op: bps.ReduceOp) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            sent = tf.IndexedSlices(values, tf.constant([0, 1]), tf.constant([2, 1])) if sparse else values
            total = bps.push_pull(sent, op=op, name="of slices" if sparse else "of dense")
            loss = tf.reduce_sum(tf.convert_to_tensor(total) ** 2 * weights)
        return tape.gradient(loss, values)

    for run in (gradient, tf.function(gradient)):
        for op in (bps.Sum, bps.Average):
            np.testing.assert_allclose(run(True, op), run(False, op), rtol=1e-6)


def _rows() -> None:
    bps.init()
    rank = bps.rank()
    for rows in ((0, 3), (1, 0), (5, 17), (1000, 1)):
        own = tf.fill([rows[rank], 2], float(rank))
        expected = np.repeat([[0, 0], [1, 1]], rows, axis=0)
        np.testing.assert_array_equal(bps.allgather(own, name="rows"), expected)
        np.testing.assert_array_equal(tf.function(bps.allgather)(own), expected)
    x = tf.ones([1 + rank])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(bps.allgather(x, name="g") * [1.0, 2.0, 3.0]) * float(rank + 1)
    np.testing.assert_array_equal(tape.gradient(loss, x), [1.5] if rank == 0 else [3, 4.5])
    with pytest.raises(ValueError, match="dimensions"):
        bps.allgather(1.0)


def _reduced_by_the_names_of_horovod() -> None:
    bps.init()
    x = tf.constant([1.0, 2.0]) * (bps.rank() + 1)
    np.testing.assert_array_equal(bps.allreduce(x), [1.5, 3])
    np.testing.assert_array_equal(bps.allreduce(x, op=bps.Sum, prescale_factor=2.0, postscale_factor=0.5), [3, 6])
    np.testing.assert_array_equal(bps.grouped_allreduce([x, x + 1], average=False), [[3, 6], [5, 8]])
    with pytest.raises(ValueError, match="both op and average"):
        bps.allreduce(x, average=True, op=bps.Sum)
    with pytest.raises(ValueError, match="cannot be scaled"):
        bps.allreduce(tf.constant([1]), prescale_factor=2.0)
    variables = [tf.Variable(float(bps.rank()))]
    assert bps.broadcast_(variables, 1) == variables and variables[0].numpy() == 1


def _broadcast_in_a_graph() -> None:
    """Of TensorFlow 1, where nothing runs that no result depends on."""
    bps.init()
    rank = bps.rank()
    with tf.Graph().as_default():
        variables = [
            tf.compat.v1.get_variable(f"v{use}", initializer=tf.fill([2], float(rank)), use_resource=use)
            for use in (True, False)
        ]
        values = bps.broadcast_(variables, 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_array_equal(session.run(values), [[1, 1], [1, 1]])
            np.testing.assert_array_equal(session.run(variables), [[1, 1], [1, 1]])
    variable = tf.Variable(float(rank))

    @tf.function
    def function() -> tf.Tensor:
        (found,) = bps.broadcast_([variable], 1)
        return found + 1

    assert function() == 2 and variable.numpy() == 1


def _objects() -> None:
    bps.init()
    rank = bps.rank()
    assert bps.broadcast_object({"epoch": rank}, root_rank=1) == {"epoch": 1}
    assert bps.broadcast_object_fn(0)([rank]) == [0]
    assert bps.allgather_object(("rank", rank)) == [("rank", 0), ("rank", 1)]


def _optimizer_of_version_1() -> None:
    bps.init()
    rank = bps.rank()
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=tf.fill([2], float(rank)))
        loss = tf.reduce_sum(w) * float(rank + 1)
        optimizer = bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        assert isinstance(optimizer, tf.compat.v1.train.GradientDescentOptimizer)
        train = optimizer.minimize(loss)
        hook = bps.BroadcastGlobalVariablesHook(1)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            np.testing.assert_array_equal(session.run(w), [1, 1])
            session.run(train)
            np.testing.assert_allclose(session.run(w), [1 - 0.15] * 2)
    for scale in (True, False):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            shared, local = (tf.compat.v1.get_variable(name, initializer=0.0) for name in ("shared", "local"))
            table = tf.compat.v1.get_variable("table", initializer=tf.zeros([2, 1]))
            loss = (shared + local + tf.reduce_sum(tf.gather(table, [1]))) * float(rank + 1)
            plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            optimizer = bps.DistributedOptimizer(plain, op=bps.Sum, scale_local_gradients=scale)
            optimizer.register_local_var(local)
            optimizer.register_local_var(table)
            train = optimizer.minimize(loss)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
            own = -(rank + 1) / (2 if scale else 1)
            assert session.run([shared, local]) == [-3.0, own]
            np.testing.assert_array_equal(session.run(table), [[0], [own]])
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="must be an optimizer"):
            bps.DistributedOptimizer(3)


def _modules_of_keras() -> list[Any]:
    """Keras 3 and, where it is installed, Keras 2."""
    return [tf.keras, *([importlib.import_module("tf_keras")] if importlib.util.find_spec("tf_keras") else [])]


def _applied(optimizer: Any, gradient: Any, value: Any = 0.0, *, local: bool = False, steps: int = 1) -> np.ndarray:
    """What a step of SGD with rate 1 takes away from a new variable of two elements."""
    variable = tf.Variable(tf.fill([2], value))
    optimizer.build([variable])
    if local:
        optimizer.register_local_var(variable)
    for _ in range(steps):
        optimizer.apply_gradients([(gradient, variable)])
    return np.asarray(value - variable.numpy())


def _optimizer_of_keras() -> None:
    """DistributedOptimizer hands each of its arguments on to that of byteps.keras."""
    bps.init()
    rank = bps.rank()
    gradient = tf.fill([2], rank + 1.0)
    slices = tf.IndexedSlices(tf.ones([1]) * (rank + 1), tf.constant([rank]), tf.constant([2]))
    mine = [bps.add_process_set([of]) for of in range(2)][rank]
    for keras in _modules_of_keras():

        def make(keras: Any = keras, **options: Any) -> Any:
            plain = keras.optimizers.SGD(1.0)
            made = bps.DistributedOptimizer(plain, **options)
            assert made is plain and isinstance(made, keras.optimizers.SGD)
            return made

        def expect(found: np.ndarray, *expected: float) -> None:
            np.testing.assert_array_equal(found, np.float32(expected))

        expect(_applied(make(), gradient), 1.5, 1.5)
        expect(_applied(make(op=bps.Sum), gradient), 3, 3)
        expect(_applied(make(process_set=mine), gradient), rank + 1, rank + 1)
        # Too fine for float16, whose numbers are 2**-10 apart here.
        fine = tf.fill([2], 1 + 2.0**-12)
        expect(_applied(make(), fine), 1 + 2.0**-12, 1 + 2.0**-12)
        expect(_applied(make(compression=bps.Compression.fp16), fine), 1, 1)
        # Their sum is none of float32's.
        large = tf.fill([2], 2.0**127)
        assert np.isinf(_applied(make(), large)).all()
        expect(_applied(make(gradient_predivide_factor=2.0), large), 2.0**127, 2.0**127)
        # Slices have no maximum.
        expect(_applied(make(op=bps.Max, sparse_as_dense=True), slices), 1, 2)
        with pytest.raises(NotImplementedError, match="sparse_as_dense"):
            _applied(make(op=bps.Max), slices)
        expect(_applied(make(), gradient, local=True), (rank + 1) / 2, (rank + 1) / 2)
        expect(_applied(make(scale_local_gradients=False), gradient, local=True), rank + 1, rank + 1)
        for argument in ("device_dense", "device_sparse"):
            with pytest.raises(TypeError, match=f"{argument} is 3"):
                make(**{argument: 3})
        if keras.__name__ != "tf_keras":
            expect(_applied(make(backward_passes_per_step=2), gradient, steps=2), 3, 3)
            average = make(backward_passes_per_step=2, average_aggregated_gradients=True)
            expect(_applied(average, gradient, steps=2), 1.5, 1.5)
        else:
            with pytest.raises(ValueError, match="backward_passes_per_step"):
                make(backward_passes_per_step=2)
        assert make(name="mine")._bps_settings.name == "mine"
    assert np.float32(bps.push_pull(1.0, op=bps.Sum)) == 2


def _state() -> None:
    bps.init()
    rank = bps.rank()
    variable = tf.Variable([float(rank), 5.0])
    state = bps.elastic.TensorFlowState([variable], epoch=rank, history=[rank])
    state.sync(root_rank=1)
    assert (state.epoch, state.history) == (1, [1])
    np.testing.assert_array_equal(variable, [1, 5])
    variable.assign([8.0, 8.0])
    state.epoch = 9
    state.history.append(9)
    state.restore()
    assert (state.epoch, state.history) == (1, [1])
    np.testing.assert_array_equal(variable, [1, 5])
    state.epoch = 2
    variable.assign([2.0, 2.0])
    state.commit()
    state.epoch = 3
    state.restore()
    assert state.epoch == 2 and variable.numpy()[0] == 2

    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    state = bps.elastic.TensorFlowKerasState(model, batch=0, backend=tf.keras.backend)
    assert "backend" not in vars(state)
    state.sync()
    first = [np.array(variable) for variable in model.get_weights()]
    assert bps.allgather_object([weight.tobytes() for weight in first])[0] == [weight.tobytes() for weight in first]
    model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    assert (model.get_weights()[0] != first[0]).any()
    state.restore()
    np.testing.assert_array_equal(model.get_weights()[0], first[0])


def _compiled_by_xla() -> None:
    bps.init()

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return bps.push_pull(x, name="x")

    with pytest.raises(tf.errors.UnimplementedError, match="XLA"):
        compiled(tf.ones([2]))

    @tf.function(jit_compile=True)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x * 2 + 1

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(bps.push_pull(inner(x), name="x"))

    np.testing.assert_array_equal(outer(tf.ones([2])), [7, 7])

    @tf.function(jit_compile=True)
    def calls_one_traced_before(x: tf.Tensor) -> tf.Tensor:
        return outer(x) + 1

    with pytest.raises(tf.errors.InvalidArgumentError, match="BytepsPushPull"):
        calls_one_traced_before(tf.ones([2]))
    np.testing.assert_array_equal(outer(tf.ones([2])), [7, 7])


def _wrong_arguments() -> None:
    x = tf.ones([2])
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.push_pull(x)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"bps\.init\(\)"):
        tf.function(bps.push_pull)(x)
    bps.init()
    for error, message, call in (
        (ValueError, "op is 17", lambda: bps.push_pull(x, op=17)),
        (ValueError, "name is ''", lambda: bps.push_pull(x, name="")),
        (TypeError, "priority", lambda: bps.push_pull(x, priority=0.5)),
        (TypeError, "compression is 3", lambda: bps.push_pull(x, compression=3)),
        (NotImplementedError, "asynchronous", lambda: bps.push_pull(x, enable_async=True)),
        (TypeError, "dtype string cannot be sent", lambda: bps.push_pull(tf.constant(["text"]))),
        (TypeError, "a RaggedTensor cannot be sent", lambda: bps.push_pull(tf.ragged.constant([[1.0], []]))),
        (TypeError, "a SparseTensor cannot be sent", lambda: bps.push_pull(tf.sparse.eye(2))),
        (ValueError, "root_rank is 5", lambda: bps.broadcast(x, 5)),
        (TypeError, "GradientTape", lambda: bps.DistributedGradientTape(None)),
        # What another library, or another function, has in this place.
        (TypeError, "scope is False.*average=False", lambda: bps.push_pull(x, False)),
        (TypeError, "scope is False", lambda: bps.grouped_push_pull([x, x], False)),
        (TypeError, "scope is None", lambda: bps.broadcast(x, 0, None)),
        (TypeError, "scope is True", lambda: bps.allgather(x, scope=True)),
        (TypeError, "scope is 3", lambda: bps.alltoall(x, scope=3)),
        (TypeError, "scope is None", lambda: bps.broadcast_variables([tf.Variable(x)], 0, None)),
        (ValueError, "name is False", lambda: bps.broadcast(x, 0, "name", False)),
        (TypeError, "is_variable", lambda: bps.broadcast(x, 0, "", "name", bps.global_process_set)),
        (TypeError, "device_dense is .*Sum", lambda: bps.reducescatter(x, bps.Sum)),
        (TypeError, "device_dense is .*Sum", lambda: bps.grouped_reducescatter([x], bps.Sum)),
        (TypeError, "device_dense is", lambda: bps.push_pull(x, "", True, bps.Compression.fp16)),
        (TypeError, "device_dense is", lambda: bps.DistributedGradientTape(tf.GradientTape(), bps.Compression.fp16)),
        (TypeError, "device_sparse is 1", lambda: bps.grouped_allreduce([x], True, "", 1)),
        (TypeError, "average is Sum.*op=Sum", lambda: bps.allreduce(x, bps.Sum)),
        (TypeError, "average is Average", lambda: bps.grouped_allreduce([x], bps.Average)),
    ):
        with pytest.raises(error, match=message):
            call()


def _one_name_twice_in_flight() -> None:
    """The second of two is refused, whichever that is."""
    bps.init()
    if bps.rank() == 1:
        bps.barrier("refused")
        assert bps.push_pull(tf.ones([1]), name="twice", op=bps.Sum).numpy() == 2
        return
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(bps.push_pull, tf.ones([1]), name="twice", op=bps.Sum) for _ in range(2)]
        refused = next(as_completed(calls, timeout=60))
        with pytest.raises(tf.errors.AlreadyExistsError, match="in flight"):
            refused.result()
        bps.barrier("refused")
        other = calls[1] if refused is calls[0] else calls[0]
        assert other.result(timeout=60).numpy() == 2


BODIES = [
    _broadcast_variables,
    _in_a_function,
    _tape,
    _the_given_tape_stays_plain,
    _tape_of_unused_and_local_variables,
    _jacobians_are_local,
    _local_and_global_gradients,
    _a_local_variable_that_is_dropped,
    _predivided,
    _factors_and_groups_that_are_none,
    _sparse,
    _sparse_on_one_rank_alone,
    _sparse_among_others,
    _average_of_integer_slices_is_refused,
    _gradient_of_slices,
    _rows,
    _reduced_by_the_names_of_horovod,
    _broadcast_in_a_graph,
    _objects,
    _optimizer_of_version_1,
    _optimizer_of_keras,
    _state,
    _compiled_by_xla,
    _wrong_arguments,
    _one_name_twice_in_flight,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
