"""DistributedTrainer: Gluon's Trainer over all workers."""

from __future__ import annotations

import warnings
from typing import Any

from byteps.arguments import predivide_factor
from byteps.asynchronous import asynchronous_training, check_asynchronous
from byteps.mxnet.compression import Compression, Compressor, check_compression, from_params
from byteps.mxnet.functions import broadcast_parameters
from byteps.mxnet.ops import push_pull_inplace
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.server_parameters import ServerParameters
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, Sum
from byteps.session import current_session

import mxnet as mx


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer that averages the gradients over all workers before it updates the parameters.

        trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
        with mx.autograd.record():
            loss = criterion(net(x), y)
        loss.backward()
        trainer.step(batch_size)            # of this worker

    The parameters start with the root's values: at once those that are initialised, the others when they are. `step`
    waits for nothing: gradients are reduced as the engine computes them, those of the first parameters first. With
    BYTEPS_ENABLE_ASYNC=1 the servers keep the parameters, and no rank waits for the gradients of others: docs/async.md.

    Args:
        params: `net.collect_params()`, or a dict of Parameters.
        optimizer: a name or an Optimizer; a DistributedOptimizer is unwrapped.
        optimizer_params: of the optimizer, when it is named.
        root_rank: whose parameters all start with.
        compression_params: what BytePS calls so; this release takes {"fp16": True}.
        compression: Compression.none or Compression.fp16, as Horovod's users write it.
        gradient_predivide_factor: the part of the division by the number of workers that comes before the sum.
        prefix: before the names of parameters and gradients, the same on all ranks. None: numbered by trainer, in the
            order in which they are made.
        process_set: the ranks whose gradients are averaged; this rank and the root are among them.

    Raises:
        TypeError: no process set, or no number as a factor.
        ValueError: before init(), or an argument that cannot be used.
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
        number = session.number("DistributedTrainer")
        if prefix is None:
            prefix = "" if number == 0 else f"{number}."
        self._prefix = prefix
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
        if self._servers is None:
            # A step divides by the batch of this worker, and so by that of all of them.
            self._scale *= gradient_predivide_factor / (process_set.size() or 1)
        by_index = {f"{index:06}": param for index, param in enumerate(self._params)}
        broadcast_parameters(by_index, root_rank, f"{prefix}parameter", process_set)
        self._params_to_init = []

    def _allreduce_grads(self) -> None:
        for index, param in enumerate(self._params):
            if param.grad_req != "null":
                self._reduce(index, param.list_grad())

    def _reduce(self, index: int, gradients: list[mx.nd.NDArray]) -> None:
        """The sum over workers and contexts, in each of the gradients."""
        first = gradients[0]
        for other in gradients[1:]:
            first += other.as_in_context(first.context)
        if self._predivide != 1.0:
            first /= self._predivide
        if self._servers is not None:
            for other in gradients[1:]:
                other[:] = first
            return
        sent, context = self._compression.compress(first)
        push_pull_inplace(
            sent,
            name=f"{self._prefix}gradient.{index}",
            priority=-index,
            op=Sum,
            process_set=self._process_set,
        )
        if sent is not first:
            first[:] = self._compression.decompress(sent, context)
        for other in gradients[1:]:
            other[:] = first

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Of Gluon's Trainer."""
        if self._servers is None:
            super()._update(ignore_stale_grad)
            return
        trained = {str(index): param for index, param in enumerate(self._params) if param.grad_req != "null"}
        self._servers.begin({key: param.list_data()[0] for key, param in trained.items()})
        before = {key: param.list_data()[0].copy() for key, param in trained.items()}
        super()._update(ignore_stale_grad)
        for key, param in trained.items():
            arrays = param.list_data()
            self._servers.add(key, arrays[0], before[key], -int(key))
            for other in arrays[1:]:
                other[:] = arrays[0]
