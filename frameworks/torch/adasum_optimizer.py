"""DistributedOptimizer(op=Adasum): what Adasum combines is how far each rank's own step moves the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from byteps import _native
from byteps.reduce_op import Adasum
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compression import is_built_in
from byteps.torch.handle import wait_all
from byteps.torch.process_set import ProcessSet
from byteps.torch.reducer import Reducer
from byteps.torch.submission import Part, into_output, operation_name, start_group, start_part

import torch


class PassCounter(Reducer):
    """The part of an AdasumOptimizer that knows its parameters. It counts backward passes, and sends no gradients."""

    def learn_order(self) -> None:
        """Gradients are not sent, so their order means nothing."""

    def _watch(self, parameter: torch.Tensor) -> None:
        self._passes_left[parameter] = self.backward_passes_per_step
        self._hook(parameter)

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient has been accumulated."""
        self._count_pass(parameter)
        gradient = parameter.grad
        if self._sparse_as_dense and gradient is not None and gradient.layout is torch.sparse_coo:
            parameter.grad = gradient.to_dense()


def _wait_or_give_up(handles: Sequence[Any]) -> None:
    """Waits for all; behind a KeyboardInterrupt none is on its way, here and at the other ranks."""
    try:
        wait_all(handles)
    except Exception:
        raise
    except BaseException:
        _give_up(handles)
        raise


def _give_up(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.cancel()
    with suppress(Exception):
        wait_all(handles)


class AdasumOptimizer(BaseOptimizer):
    """step() takes the optimizer's own step, combines what that has changed with the changes of the other ranks, and
    applies the combination in its place."""

    UNCOMPILED = ("step",)

    _groups: Sequence[Sequence[torch.Tensor]]
    _process_set: ProcessSet

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced. They are this rank's own, which may be read and clipped."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError, as Horovod's does."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's own step, and replaces its change of all parameters by the ranks' changes, combined.

        Raises:
            BytePSError: see byteps.torch.synchronize(). The parameters are then what they were before, as behind a
                KeyboardInterrupt, which gives the step up here and at the other ranks.
        """
        if not self._is_distributed:
            return self.own_step(closure)
        parameters = [parameter for parameter in self._reducer.names if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        try:
            result = self.own_step(closure)
        except BaseException:
            self._reducer.reset()
            raise
        with torch.no_grad():
            changes = [parameter.sub(start) for parameter, start in zip(parameters, before)]
            try:
                self._combine(parameters, changes)
            except BaseException:
                for parameter, start in zip(parameters, before):
                    parameter.copy_(start)
                raise
            finally:
                self._reducer.reset()
            for parameter, start, change in zip(parameters, before, changes):
                parameter.copy_(start.add_(change))
        return result

    def forget_gradients(self, whole_step: bool = False) -> None:
        """Counts backward passes anew. step() alone sends, so there is nothing to give up before it.

        Raises:
            ValueError: whole_step.
        """
        if whole_step:
            raise ValueError("this optimizer sends in step() alone: before it there is nothing to give up")
        super().forget_gradients()

    # To PyTorch: this calls the step hooks already (the optimizer's own step does).
    step.hooked = True  # type: ignore[attr-defined]

    def _combine(self, parameters: list[torch.Tensor], changes: list[torch.Tensor]) -> None:
        """Makes of each rank's change of each parameter the combination of all."""
        reducer = self._reducer
        compressed = [reducer.compression.compress(change) for change in changes]
        parts = {
            parameter: self._part(sent, reducer.names[parameter], reducer.priorities[parameter])
            for parameter, (sent, _) in zip(parameters, compressed)
        }
        handles: list[Any] = []
        try:
            for number, group in enumerate(self._groups):
                together = [parts.pop(parameter) for parameter in group if parameter in parts]
                handles.append(start_group(f"Adasum.group.{number}", together))
            for part in parts.values():
                handles.append(start_part(part))
        except BaseException:
            _give_up(handles)  # the other ranks would wait for those that were not started
            raise
        _wait_or_give_up(handles)
        for change, (sent, context) in zip(changes, compressed):
            if sent is not change or not is_built_in(reducer.compression):
                result = reducer.compression.decompress(sent, context)
                if result is not change:
                    change.copy_(result)

    def _part(self, tensor: torch.Tensor, name: str, priority: int) -> Part:
        named = operation_name("adasum", name, self._process_set)
        options = {"op": Adasum}
        return into_output(_native.ALL_REDUCE, tensor, tensor, named, self._process_set, priority, options=options)
