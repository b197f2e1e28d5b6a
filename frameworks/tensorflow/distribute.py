"""tf.distribute over several processes: a MirroredStrategy whose replicas are those of all workers of the job.

    strategy = bps.distribute.MirroredStrategy()        # the devices of this process; BytePS joins the processes
    with strategy.scope():
        model = ...

TensorFlow's own MirroredStrategy with CrossDeviceOps knows this process alone. What that gets wrong is mended here: its
number of replicas, which losses are divided by, and initial values, which would differ between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
from byteps.names import unnumbered
from byteps.reduce_op import Average, Sum
from byteps.session import current_session
from byteps.tensorflow.allgather import gather_rows, rows_of
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import Reduction, source_names
from byteps.tensorflow.names import unique_in_graph
from byteps.tensorflow.ops import reduce_named
from byteps.tensorflow.variables import broadcast_values

import tensorflow as tf

_OPS = {tf.distribute.ReduceOp.SUM: Sum, tf.distribute.ReduceOp.MEAN: Average}


def _first_component(value: Any) -> Any:
    """The value of the first device of a mirrored value; the value itself if it is none."""
    components = getattr(value, "values", None)
    return components[0] if isinstance(components, tuple) else value


class CrossDeviceOps(tf.distribute.ReductionToOneDevice):
    """Reduces over the devices of this process, then once over all workers, and copies the result to the devices.

    For TensorFlow's own strategies; MirroredStrategy below brings it along. It carries gradients as well as losses and
    metrics: whatever is reduced between replicas is reduced between workers, too.

    Args:
        compression: one of Compression's, for gradients.
        sparse_as_dense: sends tf.IndexedSlices as dense tensors.
    """

    def __init__(self, compression: Any = Compression.none, sparse_as_dense: bool = False) -> None:
        super().__init__()
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense

    @property
    def _num_between_graph_workers(self) -> int:
        # With one, TensorFlow would take a short cut for a single device, past the reduction between workers.
        return max(2, current_session().native.info()["size"])

    def _over_workers(self, reduce_op: Any, values: list[Any], names: list[str], what: str, compression: Any) -> list:
        reduction = Reduction(
            _OPS[reduce_op], compression, self._sparse_as_dense, prefix=f"mirrored.{what}", of_strategy=True
        )
        return reduction(values, names)

    def _one_device(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        """The reduction over this process's devices, on the first of them."""
        return _first_component(super().reduce_implementation(reduce_op, value, destinations, options))

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """Of tf.distribute.CrossDeviceOps."""
        local = self._one_device(reduce_op, per_replica_value, destinations, options)
        names = source_names([destinations])
        reduced = self._over_workers(reduce_op, [local], names, "reduce", Compression.none)
        return self.broadcast(reduced[0], destinations)

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        """Of tf.distribute.CrossDeviceOps: gradients come here."""
        local = [self._one_device(reduce_op, value, to, options) for value, to in value_destination_pairs]
        names = source_names([to for _, to in value_destination_pairs])
        reduced = self._over_workers(reduce_op, local, names, "batch", self._compression)
        return [self.broadcast(value, to) for value, (_, to) in zip(reduced, value_destination_pairs)]

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        """Of tf.distribute.CrossDeviceOps: the parts of this process's devices, then of all workers, rank 0's first."""
        local = _first_component(super()._gather_implementation(per_replica_value, destinations, axis, options))
        name = unique_in_graph(f"mirrored.gather.{source_names([destinations])[0]}")
        rows = _exchanged(rows_of("gather", local), axis)
        return self.broadcast(_exchanged(gather_rows(rows, name), axis), destinations)


def _exchanged(tensor: tf.Tensor, axis: Any) -> tf.Tensor:
    """The tensor with its first dimension and another one in each other's place."""
    known = tf.get_static_value(axis)
    if known is not None and int(known) == 0:
        return tensor
    places = tf.range(tf.rank(tensor))
    other = places[axis]
    return tf.transpose(tensor, tf.where(places == 0, other, tf.where(places == other, 0, places)))


def _is_mirrored(value: Any) -> bool:
    """Whether the value is the same on all replicas already."""
    return isinstance(value, tf.distribute.DistributedValues) and "Mirrored" in type(value).__name__


def _is_number(value: Any) -> bool:
    """Whether it is a number of Python or an array of NumPy's numbers."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind not in "OSU"
    return isinstance(value, Number)


def _checks_finite(function: Any) -> bool:
    """Whether it is what Keras 3's LossScaleOptimizer asks each replica: whether its own gradients are finite."""
    of = type(getattr(function, "__self__", None)).__mro__
    return getattr(function, "__name__", "") == "check_finite" and any(c.__name__ == "LossScaleOptimizer" for c in of)


def _finite_everywhere(finite: Sequence[Any]) -> tf.Tensor:
    """Whether it is so on the replicas of this process, and on those of all workers."""
    overflow = tf.cast(tf.logical_not(tf.reduce_all(tf.stack(finite))), tf.int32)
    name = unique_in_graph("mirrored.overflow")
    # How many workers overflow. Not a maximum, which there is none of while a rank has joined.
    return tf.equal(reduce_named([overflow], [name], Sum, [0], Compression.none)[0], 0)


def _extended_of_the_job(kind: type) -> type:
    """The class of a strategy's `extended`, for replicas in several processes."""

    class Extended(kind):  # type: ignore[misc, valid-type]
        _bps_created = 0
        _bps_counts_local = False

        @property
        def _num_replicas_in_sync(self) -> int:
            local = super()._num_replicas_in_sync
            return local if self._bps_counts_local else local * current_session().native.info()["size"]

        def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
            found = super()._call_for_each_replica(fn, args, kwargs)
            if not _checks_finite(fn):
                return found
            # Keras takes the first replica's word, and sums gradients only if that is yes: a worker that overflows
            # would leave the others waiting.
            return _finite_everywhere(self._container_strategy().experimental_local_results(found))

        def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
            # A batch is this worker's, and is cut into those of its replicas.
            self._bps_counts_local = True
            try:
                return super()._experimental_distribute_dataset(dataset, options)
            finally:
                self._bps_counts_local = False

        def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
            # The pipeline of this process is one of as many as there are workers.
            info = current_session().native.info()
            context = tf.distribute.InputContext(info["size"], info["rank"], self._num_replicas_in_sync)
            return super()._distribute_datasets_from_function(lambda _: dataset_fn(context), options)

        def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
            total = self._num_replicas_in_sync

            def of_replica(context: Any) -> Any:
                number = self._get_replica_id_in_sync_group(context.replica_id_in_sync_group)
                return value_fn(tf.distribute.experimental.ValueContext(number, total))

            self._bps_counts_local = True
            try:
                return super()._experimental_distribute_values_from_function(of_replica)
            finally:
                self._bps_counts_local = False

        # The number of a replica is one among all workers'.

        def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
            return current_session().native.info()["rank"] * len(self.worker_devices) + replica_id

        def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
            return replica_id_in_sync_group - self._get_replica_id_in_sync_group(0)

        @property
        def worker_devices_by_replica(self) -> list[list[str]]:
            # Of other processes' replicas too, since they are looked up by the number of the replica.
            return list(super().worker_devices_by_replica) * current_session().native.info()["size"]

        def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
            # With one device the value of a replica is a plain tensor, which TensorFlow's own takes for gathered.
            if tf.is_tensor(value) and len(self.worker_devices) == 1:
                return self._cross_device_ops._gather(value, destinations, axis, options)
            return super()._gather_to_implementation(value, destinations, axis, options)

        def _get_cross_device_ops(self, value: Any) -> Any:
            # TensorFlow's own takes another, which knows this process alone, for integers.
            return self._cross_device_ops

        def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
            """The same for what goes to the CPU: losses, metrics."""
            if _is_mirrored(value):
                return super()._reduce_to(reduce_op, value, destinations, options)
            return tf.nest.map_structure(lambda part: self._reduce_part(reduce_op, part, destinations, options), value)

        def _reduce_part(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
            # What all replicas of this process have is a plain value; with one device, what any has.
            if _is_number(value):
                value = tf.convert_to_tensor(value, dtype=getattr(destinations, "dtype", None))
            mean = reduce_op == tf.distribute.ReduceOp.MEAN
            plain = tf.is_tensor(value) and (mean or len(self.worker_devices) == 1)
            if plain or isinstance(value, tf.distribute.DistributedValues):
                return self._cross_device_ops.reduce(reduce_op, value, destinations)
            return super()._reduce_to(reduce_op, value, destinations, options)

        def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
            number = self._bps_created
            self._bps_created = number + 1
            name = f"initial.{number}.{unnumbered(kwargs.get('name') or 'variable')}"
            kwargs["initial_value"] = _value_of_rank_0(kwargs["initial_value"], kwargs.get("dtype"), name)
            return super()._create_variable(next_creator, **kwargs)

    Extended.__name__ = kind.__name__
    return Extended


def _value_of_rank_0(initial_value: Any, dtype: Any, name: str) -> Any:
    """A function that makes the value here, and returns what rank 0 has made."""

    def value(*args: Any, **kwargs: Any) -> tf.Tensor:
        own = initial_value(*args, **kwargs) if callable(initial_value) else initial_value
        own = tf.convert_to_tensor(own, dtype=dtype)
        if own.dtype is tf.string or own.dtype is tf.resource or own.dtype is tf.variant:
            return own
        return broadcast_values([own], [name], 0)[0]

    return value


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """tf.distribute.MirroredStrategy whose replicas are the devices of all workers of the job.

    num_replicas_in_sync counts them all, so losses that are divided by it are right; replica_id_in_sync_group numbers
    them all, those of rank 0 first. Variables begin with rank 0's values; every worker creates the same variables in
    the same order. Reductions, gather() and all_gather() are over all workers, and all of them call them; so is reading
    a variable that is reduced when it is read, such as those of a metric: on one rank alone it waits for its deadline.
    Optimizers and tapes stay plain. A dataset is this worker's: give each its part,
    with dataset.shard(bps.size(), bps.rank()), in batches of the worker, which are cut into those of its replicas.

    Args:
        devices: of this process; None: its GPUs, else its CPU. The same number on all ranks.
        cross_device_ops: None, or a CrossDeviceOps of this module.

    Raises:
        ValueError: before init(), or cross_device_ops of another kind, which would leave the other workers out.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        current_session()
        if cross_device_ops is None:
            cross_device_ops = CrossDeviceOps()
        elif not isinstance(cross_device_ops, CrossDeviceOps):
            raise ValueError(
                f"cross_device_ops is a {type(cross_device_ops).__name__}; it must be a "
                "byteps.tensorflow.distribute.CrossDeviceOps, since others reduce within this process alone"
            )
        super().__init__(devices=devices, cross_device_ops=cross_device_ops)
        self.extended.__class__ = _extended_of_the_job(type(self.extended))
