"""DistributedTrainer: Gluon's Trainer over all workers."""

from __future__ import annotations

import warnings
from typing import Any

from byteps.arguments import predivide_factor, root
from byteps.asynchronous import asynchronous_training, check_asynchronous
from byteps.mxnet.compression import Compression, Compressor, check_compression, from_params
from byteps.mxnet.functions import broadcast_parameters
from byteps.mxnet.ops import push_pull, push_pull_inplace
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.parameter_names import by_number, checksum, listed, unnumbered
from byteps.mxnet.server_parameters import ServerParameters
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, Max, Sum
from byteps.session import current_session

import mxnet as mx


def _places(params: Any) -> list[int]:
    """For each parameter, as Gluon's Trainer counts them, its number among all: the same on all ranks."""
    if not hasattr(params, "keys"):
        return list(range(len(params))) if isinstance(params, (list, tuple)) else []
    of_key = {key: place for place, key in enumerate(sorted(params.keys(), key=by_number))}
    return [of_key[key] for key in sorted(params.keys())]


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer that averages the gradients over all workers before it updates the parameters.

        trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
        with mx.autograd.record():
            loss = criterion(net(x), y)
        loss.backward()
        trainer.step(batch_size)            # of this worker

    The parameters start with the root's values: at once those that are initialised, the others when they are. `step`
    waits for nothing (but with ignore_stale_grad): gradients are reduced as the engine computes them, those of the
    first parameters first. With BYTEPS_ENABLE_ASYNC=1 the servers keep the parameters, and no rank waits for the
    gradients of others: docs/async.md.

    Args:
        params: `net.collect_params()`, or a dict of Parameters; or a list of them, in the same order on all ranks.
        optimizer: a name or an Optimizer; a DistributedOptimizer is unwrapped.
        optimizer_params: of the optimizer, when it is named.
        root_rank: whose parameters all start with.
        compression_params: what BytePS calls so; this release takes {"fp16": True}.
        compression: Compression.none or Compression.fp16, as Horovod's users write it.
        gradient_predivide_factor: the part of the division by the number of workers that comes before the sum.
        prefix: before the names of parameters and gradients, the same on all ranks. None: numbered by trainer, in the
            order in which they are made.
        process_set: the ranks whose gradients are averaged; the root is among them. Others keep their own parameters,
            and update them by their own gradients, divided by the size of the set, as with Horovod.

    Raises:
        TypeError: no process set, or no number as a factor.
        ValueError: before init(), an argument that cannot be used, or ranks whose parameters have different names but
            for Gluon's numbers (with a `prefix` the first step says so), or lists that are sorted by names whose
            numbers are in another order on each rank.
        NotImplementedError: compression_params asks for what this release has not.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: dict[str, Any] | None = None,
        *,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        session = current_session()
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn("DistributedTrainer takes the optimizer itself, not a DistributedOptimizer", stacklevel=2)
            optimizer = optimizer._optimizer
        gradient_predivide_factor = predivide_factor(gradient_predivide_factor, Average)
        self._process_set = check_process_set(process_set)
        check_compression(compression)
        by_params = from_params(compression_params)
        self._compression = compression if compression is not Compression.none else by_params
        takes_part = process_set.included() is not False
        root_rank = root(session, root_rank, process_set if takes_part else global_process_set)
        self._predivide = gradient_predivide_factor
        self._servers: ServerParameters | None = None
        if asynchronous_training() and process_set.size() != 1:
            check_asynchronous(
                Average,
                compression=self._compression is not Compression.none,
                gradient_predivide_factor=gradient_predivide_factor != 1.0,
                process_set=process_set is not global_process_set,
            )
            self._servers = ServerParameters()
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        # Behind all that may be refused: ranks whose numbers differ do not meet.
        number = session.object_number("DistributedTrainer")
        made_in_order = prefix is None
        if prefix is None:
            prefix = "" if number == 0 else f"{number}."
        self._prefix = prefix
        if self._servers is None:
            # A step divides by the batch of this worker, and so by that of all of them.
            self._scale *= gradient_predivide_factor / (process_set.size() or 1)
        self._places = _places(params)
        self._by_keys = hasattr(params, "keys")
        # Of all ranks: an engine that waits for each operation, or a name made of the first ones, need one order.
        self._in_order = sorted(range(len(self._params)), key=self._places.__getitem__)
        # Before what would wait for parameters that other ranks have not.
        self._asked = self._ask_for_parameters()
        if made_in_order:
            self._check_parameters()
        called = zip(self._params, self._places)
        by_place = {f"{place:06}.{unnumbered(param.name)}": param for param, place in called}
        if self._takes_part():
            broadcast_parameters(by_place, root_rank, f"{prefix}parameter", process_set)
        self._params_to_init = []

    def _takes_part(self) -> bool:
        return self._process_set.included() is not False

    def _ask_for_parameters(self) -> mx.nd.NDArray | None:
        """Of all ranks the largest checksums of the parameters and of their order, minus the smallest ones, and whether
        the order of any is the program's own; None: there are no other ranks."""
        if self._process_set.size() == 1 or not self._takes_part():
            return None
        # A program that sorts its list by names has another order on each rank where those have other numbers.
        names = [param.name for param in self._params]
        of_name = {name: place for place, name in enumerate(sorted(names, key=by_number))}
        own_order = self._by_keys or names != sorted(names)
        sums = [
            checksum(self._key(index) for index in self._in_order),
            checksum(str(of_name[name]) for name in names),
        ]
        own = mx.nd.array([*sums, *(-each for each in sums), own_order], dtype="int64")
        return push_pull_inplace(own, name=f"{self._prefix}parameters", op=Max, process_set=self._process_set)

    def _check_parameters(self) -> None:
        """Raises ValueError if ranks have different parameters: each would wait for the others to send its own."""
        if self._asked is None:
            return
        agreed = self._asked.asnumpy()
        largest, smallest, any_own_order = agreed[:2], -agreed[2:4], bool(agreed[4])
        if largest[0] != smallest[0]:
            shown = listed([self._key(index) for index in self._in_order])
            raise ValueError(
                "the ranks' parameters differ in number or name; those of this rank, without Gluon's numbers: "
                f"{shown}. Make the same blocks on all ranks, with the same prefixes"
            )
        if largest[1] != smallest[1] and not any_own_order:
            shown = listed([param.name for param in self._params])
            raise ValueError(
                "the ranks' lists of parameters are sorted by names that have other numbers on each (dense10 sorts "
                f"before dense9), so the same place may be another layer's; the list of this rank: {shown}. Give "
                "net.collect_params() itself, whose parameters are matched by their numbers, or give the blocks "
                "prefixes of their own"
            )
        self._asked = None

    def _allreduce_grads(self) -> None:
        self._check_parameters()
        for index in self._trained():
            self._reduce(index, self._params[index].list_grad())

    def _reduce(self, index: int, gradients: list[mx.nd.NDArray]) -> None:
        """The sum over workers and contexts, in each of the gradients."""
        first = gradients[0]
        for other in gradients[1:]:
            first += other.as_in_context(first.context)
        if self._predivide != 1.0:
            first /= self._predivide
        if self._servers is not None or not self._takes_part():
            for other in gradients[1:]:
                other[:] = first
            return
        sent, context = self._compression.compress(first)
        push_pull_inplace(
            sent,
            name=f"{self._prefix}gradient.{self._key(index)}",
            priority=-self._places[index],
            op=Sum,
            process_set=self._process_set,
        )
        if sent is not first:
            first[:] = self._compression.decompress(sent, context)
        for other in gradients[1:]:
            other[:] = first

    def _trained(self) -> list[int]:
        """Gluon's indices of the parameters that have gradients, in the order of all ranks."""
        return [index for index in self._in_order if self._params[index].grad_req != "null"]

    def _key(self, index: int) -> str:
        """The same on all ranks for the parameter that Gluon gives this index; and another one for another parameter,
        where ranks have different ones."""
        return f"{self._places[index]}.{unnumbered(self._params[index].name)}"

    def _agree_on_stale(self, zero: bool) -> None:
        """Makes all ranks update the parameters of which any has a gradient; `zero`: with zeros of those that have
        none."""
        self._check_parameters()
        if self._servers is not None or not self._takes_part():
            return
        trained = [self._params[index] for index in self._trained()]
        fresh = [any(array._fresh_grad for array in param.list_data()) for param in trained]
        # How many ranks have a gradient. Not a maximum, which there is none of while a rank has joined.
        flags = mx.nd.array(fresh, dtype="int32")
        counts = push_pull(flags, name=f"{self._prefix}fresh", op=Sum, process_set=self._process_set).asnumpy()
        for param, count in zip(trained, counts):
            for array, gradient in zip(param.list_data(), param.list_grad()):
                if count > 0 and not array._fresh_grad:
                    if zero:
                        gradient[:] = 0
                    array._fresh_grad = True

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As of Gluon's Trainer. With `ignore_stale_grad` a parameter is left alone whose gradient is stale on all
        ranks; else the stale ones count as zeros. The step then waits until all ranks have said which those are."""
        if ignore_stale_grad:
            self._agree_on_stale(zero=True)
        super().step(batch_size, ignore_stale_grad)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As of Gluon's Trainer, behind allreduce_grads(), which has sent stale gradients as they are. With
        `ignore_stale_grad` all ranks leave the same parameters alone."""
        if ignore_stale_grad:
            self._agree_on_stale(zero=False)
        super().update(batch_size, ignore_stale_grad)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Of Gluon's Trainer."""
        self._check_parameters()
        if self._servers is None:
            super()._update(ignore_stale_grad)
            return
        # With the trainer's prefix: parameters of another trainer may have the same keys.
        trained = {f"{self._prefix}{self._key(index)}": index for index in self._trained()}
        self._servers.begin({name: self._params[index].list_data()[0] for name, index in trained.items()})
        before = {name: self._params[index].list_data()[0].copy() for name, index in trained.items()}
        super()._update(ignore_stale_grad)
        for name, index in trained.items():
            arrays = self._params[index].list_data()
            self._servers.add(name, arrays[0], before[name], -self._places[index])
            for other in arrays[1:]:
                other[:] = arrays[0]
