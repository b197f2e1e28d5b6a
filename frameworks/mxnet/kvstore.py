"""Key-value stores for whatever takes one: mx.kv.create("byteps"), and "dist_byteps" where MXNet looks for that word.

    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="byteps")
    trainer.step(batch_size_of_all_workers)

Values are summed over all workers, as MXNet's own distributed stores do: a Trainer divides by the batch it is told, so
that is the batch of all workers. Module divides by the batch of all workers with "dist_byteps", and by that of this
worker with "byteps". The store keeps no values and updates none: it has what MXNet's KVStoreBase has,
`broadcast` and `pushpull`, and says of the rest what to do instead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

from byteps.asynchronous import refuse_asynchronous
from byteps.basics import init, is_initialized
from byteps.mxnet.compression import from_params
from byteps.mxnet.ops import broadcast_, push_pull_inplace
from byteps.mxnet.parameter_names import by_number, checksum, listed, unnumbered
from byteps.reduce_op import Max, Sum
from byteps.session import current_session

import mxnet as mx
import mxnet.gluon.trainer
import mxnet.model
import mxnet.module.module

Arrays = Any  # an NDArray, or a list of them, one for each context


def _list(arrays: Arrays) -> list[mx.nd.NDArray]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


@mx.kv.KVStoreBase.register
class BytePS(mx.kv.KVStoreBase):
    """The store "byteps". It joins the job by init(), if that was not called before."""

    def __init__(self) -> None:
        if not is_initialized():
            init()
        refuse_asynchronous('the store "byteps"')
        number = current_session().object_number("kvstore")
        self._prefix = "kvstore" if number == 0 else f"kvstore.{number}"
        self._compression = from_params(None)

    def broadcast(self, key: Any, value: Arrays, out: Arrays, priority: int = 0) -> None:
        """Copies the value of rank 0 into every `out` of all ranks."""
        if out is None:
            raise TypeError(f"broadcast of {key!r} has no out; give the arrays to be written, or call init(key, value)")
        if isinstance(key, (list, tuple)):
            for each in zip(key, value, out):
                self.broadcast(*each, priority=priority)
            return
        source, outputs = _list(value)[0], _list(out)
        if source.handle.value != outputs[0].handle.value:
            outputs[0][:] = source
        broadcast_(outputs[0], 0, f"{self._prefix}.{key}", priority)
        for other in outputs[1:]:
            other[:] = outputs[0]

    def check_parameters(self, names: Sequence[str]) -> None:
        """Waits until all ranks have told what a Trainer's parameters are called, in its order.

        The Trainer's keys are the places of its parameters. Of a dict it sorts them by name, where "dense10" comes
        before "dense9": ranks that have made other blocks before may give one key to different layers.

        Raises:
            ValueError: the ranks' parameters have other names but for Gluon's numbers, or another order.
        """
        if self.num_workers == 1:
            return
        called = [unnumbered(name) for name in names]
        of_name = {name: place for place, name in enumerate(sorted(names, key=by_number))}
        sums = [checksum(called), checksum(str(of_name[name]) for name in names)]
        # A list keeps the order the program gives it. Only one of sorted names may have been a dict.
        no_dict = list(names) != sorted(names)
        own = mx.nd.array([*sums, *(-each for each in sums), no_dict], dtype="int64")
        agreed = push_pull_inplace(own, name=f"{self._prefix}.parameters", op=Max).asnumpy()
        largest, smallest, any_is_no_dict = agreed[:2], -agreed[2:4], bool(agreed[4])
        if largest[0] != smallest[0]:
            raise ValueError(
                "the ranks' parameters differ in number, name or order; those of this rank, without Gluon's numbers: "
                f"{listed(called)}. Make the same blocks on all ranks, with the same prefixes"
            )
        if largest[1] != smallest[1] and not any_is_no_dict:
            raise ValueError(
                "Gluon's Trainer has the ranks' parameters in different orders, since their names have other numbers "
                f"on each (dense10 sorts before dense9); the order of this rank: {listed(names)}. Take "
                "byteps.mxnet.DistributedTrainer, which matches them, give the blocks prefixes, or make the same "
                "blocks on all ranks"
            )

    def init(self, key: Any, value: Arrays) -> None:
        """As broadcast, in place."""
        self.broadcast(key, value, value)

    def pushpull(self, key: Any, value: Arrays, out: Arrays | None = None, priority: int = 0) -> None:
        """Sums the values of all contexts and workers into every `out` (by default: into the values)."""
        if isinstance(key, (list, tuple)):
            for number, name in enumerate(key):
                self.pushpull(name, value[number], None if out is None else out[number], priority)
            return
        values = _list(value)
        outputs = values if out is None else _list(out)
        total = values[0]
        for other in values[1:]:
            total = total + other.as_in_context(total.context)
        sent, context = self._compression.compress(total)
        if sent is values[0] and values[0] is not outputs[0]:
            sent = sent.copy()
        push_pull_inplace(sent, name=f"{self._prefix}.{key}", priority=priority, op=Sum)
        result = self._compression.decompress(sent, context)
        for output in outputs:
            if output is not result:
                output[:] = result

    def push(self, key: Any, value: Arrays, priority: int = 0) -> NoReturn:
        """Raises NotImplementedError: see pushpull."""
        self._keeps_no_values("push")

    def pull(self, key: Any, out: Arrays | None = None, priority: int = 0, ignore_sparse: bool = True) -> NoReturn:
        """Raises NotImplementedError: see pushpull."""
        self._keeps_no_values("pull")

    def row_sparse_pull(self, key: Any, out: Arrays | None = None, priority: int = 0, row_ids: Any = None) -> NoReturn:
        """Raises NotImplementedError: parameters and gradients are dense."""
        self._keeps_no_values("row_sparse_pull")

    def _keeps_no_values(self, call: str) -> NoReturn:
        raise NotImplementedError(
            f'the store "{self.type}" has no {call}, since it keeps no values: call pushpull(key, value, out=out), '
            "which sums over all workers, and broadcast(key, value, out) for what all start with"
        )

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> NoReturn:
        """Raises NotImplementedError: workers update."""
        self._updates_nothing("set_optimizer")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> NoReturn:
        """Raises NotImplementedError: workers have these states."""
        self._updates_nothing("save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> NoReturn:
        """Raises NotImplementedError: workers have these states."""
        self._updates_nothing("load_optimizer_states")

    def _updates_nothing(self, call: str) -> NoReturn:
        raise NotImplementedError(
            f'the store "{self.type}" has no {call}, since every worker updates by itself: give the optimizer to '
            "Gluon's Trainer, with update_on_kvstore=False, or to Module. Both save and load its states"
        )

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Nothing is updated here, so a caller that asks for "optimizer" updates by itself."""
        if capability.lower() == mx.kv.KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"unknown capability {capability}")

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """BytePS's compression_params; this release takes {"fp16": True}."""
        self._compression = from_params(compression_params)

    @property
    def type(self) -> str:
        """A name it is created by."""
        return type(self).__name__.lower()

    @property
    def rank(self) -> int:
        """Of this worker in the job."""
        rank: int = current_session().native.info()["rank"]
        return rank

    @property
    def local_rank(self) -> int:
        """Of this worker on its host."""
        rank: int = current_session().native.info()["local_rank"]
        return rank

    @property
    def num_workers(self) -> int:
        """Workers in the job."""
        size: int = current_session().native.info()["size"]
        return size


@mx.kv.KVStoreBase.register
class Dist_BytePS(BytePS):
    """The store "dist_byteps": the same, under a name by which MXNet knows that it is distributed: Module then takes
    the batch size as that of one worker."""

    @property
    def type(self) -> str:
        """A name by which it is created, too. Module looks for "dist" and for "_sync" in it."""
        return _SYNCHRONOUS


_SYNCHRONOUS = "dist_sync_byteps"
mx.kv.KVStoreBase.kv_registry[_SYNCHRONOUS] = Dist_BytePS


def _keep_on_one_device(module: Any) -> None:
    """Trainer and Module leave a store out, by its name, if there is one device and no "dist" in the name. And a
    Trainer's parameters are compared with those of the other ranks, before it broadcasts any."""
    original = module._create_kvstore
    if getattr(original, "keeps_byteps", False):
        return

    @functools.wraps(original)
    def create(kvstore: Any, num_device: int, arg_params: dict[str, Any]) -> tuple[Any, bool]:
        if isinstance(kvstore, str) and kvstore.lower() == "byteps":
            kvstore = mx.kv.create(kvstore)
        store, update_on_kvstore = original(kvstore, num_device, arg_params)
        # Module's keys are names: where ranks have others, its operations do not meet.
        if module is mxnet.gluon.trainer and isinstance(store, BytePS):
            store.check_parameters(list(arg_params))
        return store, update_on_kvstore

    create.keeps_byteps = True
    module._create_kvstore = create


def _begin_equal(module: Any) -> None:
    """Module gives a store that updates nothing its own copy of the parameters, for the store to keep. What it trains
    are other arrays, on the devices: they begin with rank 0's values, and the copy with them."""
    original = module._initialize_kvstore
    if getattr(original, "begins_equal", False):
        return

    @functools.wraps(original)
    def initialize(
        kvstore: Any, param_arrays: Any, arg_params: Any, param_names: Sequence[str], update_on_kvstore: bool
    ) -> None:
        if not isinstance(kvstore, BytePS):
            original(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)
            return
        for place, (name, arrays) in enumerate(zip(param_names, param_arrays)):
            kvstore.broadcast(name, arg_params[name], arrays, priority=-place)
            arg_params[name][:] = arrays[0]

    initialize.begins_equal = True
    module._initialize_kvstore = initialize


for _module in (mxnet.model, mxnet.gluon.trainer, mxnet.module.module):
    _keep_on_one_device(_module)
for _module in (mxnet.model, mxnet.module.module):
    _begin_equal(_module)
