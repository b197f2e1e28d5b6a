"""DistributedOptimizer: an optimizer of MXNet's that gets the gradients of all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.arguments import predivide_factor
from byteps.asynchronous import asynchronous_training, check_asynchronous
from byteps.mxnet.ops import push_pull_inplace
from byteps.mxnet.server_parameters import ServerParameters
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average
from byteps.session import current_session

import mxnet as mx

_OWN = ("_process_set", "_predivide", "_optimizer", "_name", "_servers")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Averages each gradient over all workers before `optimizer` uses it.

        optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1))
        module.fit(..., optimizer=optimizer, kvstore=None)

    Gradients of parameters with a smaller index are more urgent. With Gluon use DistributedTrainer. All attributes are
    those of the optimizer given, also when they are set. With BYTEPS_ENABLE_ASYNC=1 the servers keep the parameters,
    and no rank waits for the gradients of others: docs/async.md.

    Args:
        optimizer: what updates the parameters.
        name: before the indices, the same on all ranks. None: "gradient" for the first optimizer of a session,
            "gradient.1" for the second and so on, in the order in which they are made.
        gradient_predivide_factor: the part of the division by the number of workers that comes before the sum.
        process_set: the ranks whose gradients are averaged. Others update by their own, divided by the size of the set,
            as with Horovod.

    Raises:
        TypeError: not an optimizer, no number as a factor, or no process set.
        ValueError: before init(), or a factor that is not positive and finite.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        name: str | None = None,
        *,
        gradient_predivide_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer is {optimizer!r}; it must be an Optimizer of MXNet")
        gradient_predivide_factor = predivide_factor(gradient_predivide_factor, Average)
        self._process_set = check_process_set(process_set)
        self._predivide = gradient_predivide_factor
        self._optimizer = optimizer
        self._servers: ServerParameters | None = None
        if asynchronous_training() and process_set.size() != 1:
            check_asynchronous(
                Average,
                gradient_predivide_factor=gradient_predivide_factor != 1.0,
                process_set=process_set is not global_process_set,
            )
            self._servers = ServerParameters()
        # Behind all that may be refused: ranks whose numbers differ do not meet.
        number = current_session().object_number("DistributedOptimizer")
        self._name = name or ("gradient" if number == 0 else f"gradient.{number}")

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":  # not there yet while it is unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __setattr__(self, item: str, value: Any) -> None:
        if item in _OWN:
            super().__setattr__(item, value)
        else:
            setattr(self._optimizer, item, value)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()  # the optimizer's own leaves members out that are not here

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _reduce(self, index: Any, grad: Any) -> None:
        indices, gradients = (index, grad) if isinstance(index, (tuple, list)) else ([index], [grad])
        takes_part = self._process_set.included() is not False
        for number, gradient in zip(indices, gradients):
            if not takes_part:
                gradient /= self._process_set.size()
                continue
            priority = -number if isinstance(number, int) else 0
            if self._predivide != 1.0:
                gradient /= self._predivide
            push_pull_inplace(gradient, name=f"{self._name}.{number}", priority=priority, process_set=self._process_set)
            if self._predivide != 1.0:
                gradient *= self._predivide

    def _step(self, own_step: Callable[..., None], index: Any, weight: Any, grad: Any, state: Any) -> None:
        if self._servers is None:
            self._reduce(index, grad)
            own_step(index, weight, grad, state)
            return
        several = isinstance(index, (tuple, list))
        weights = dict(zip(map(str, index), weight)) if several else {str(index): weight}
        self._servers.begin(weights)
        before = {key: each.copy() for key, each in weights.items()}
        own_step(index, weight, grad, state)
        for key, each in weights.items():
            self._servers.add(key, each, before[key], -int(key) if key.isdecimal() else 0)

    def create_state(self, index: Any, weight: Any) -> Any:
        """As of the optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """As of the optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Updates one parameter or several with the averages of their gradients."""
        self._step(self._optimizer.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As update, for weights of 16 bits that have a copy of 32."""
        self._step(self._optimizer.update_multi_precision, index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """As of the optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """As of the optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """As of the optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)
