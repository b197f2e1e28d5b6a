"""The parameters that the servers keep in asynchronous training (docs/async.md), on each backend of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from byteps import basics
from byteps.asynchronous import refuse_asynchronous
from byteps.session import current_session


class ServerParameters(Protocol):
    """The parameters of one optimizer."""

    def step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        """Takes `own_step`, which changes the variables, and makes them those of the servers, with that change. The
        servers begin with the variables that rank 0 has at its first step, for which all ranks wait."""


class _OnTorch:
    """For Keras 3 on PyTorch."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._session: Any = None
        self._prefix = ""

    def step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        """Of ServerParameters."""
        import torch

        return torch.compiler.disable(self._step)(variables, names, own_step)

    def _step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        import torch

        if current_session().native.info()["size"] == 1:
            return own_step()
        self._begin(variables, names)
        with torch.no_grad():
            before = [variable.value.detach().clone() for variable in variables]
        result = own_step()
        with torch.no_grad():
            changes = [variable.value.detach() - start for variable, start in zip(variables, before)]
            self._add(names, changes)
            for variable, value in zip(variables, changes):
                variable.assign(value)
        return result

    def _add(self, names: Sequence[str], changes: Sequence[Any]) -> None:
        from byteps.torch.async_optimizer import add_to_servers

        add_to_servers([self._prefix + name for name in names], changes, range(0, -len(names), -1))

    def _begin(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        import torch

        if self._session is not current_session():  # servers of another job have nothing of ours
            self._begun = set()
            self._session = current_session()
            self._prefix = f"AsyncParam.{self._session.number('AsyncParam')}."
        fresh = [index for index, name in enumerate(names) if name not in self._begun]
        if not fresh:
            return
        first = self._session.native.info()["rank"] == 0
        values = [variables[index].value.detach().clone() for index in fresh]
        self._add([names[index] for index in fresh], values if first else [torch.zeros_like(one) for one in values])
        basics.barrier(f"{self._prefix}{len(self._begun)}")
        self._begun.update(names[index] for index in fresh)


def server_parameters(backend: str) -> ServerParameters:
    """Those of a new optimizer. Raises UnimplementedError on JAX: Keras takes the variables' values away while it
    traces a training step, and the servers would have nothing to begin with."""
    if backend == "torch":
        return _OnTorch()
    if backend == "tensorflow":
        from byteps.tensorflow.server_parameters import ServerParameters as OnTensorFlow

        return OnTensorFlow()
    refuse_asynchronous("byteps.keras.DistributedOptimizer on Keras's backend JAX")
    raise AssertionError(f"asynchronous training on {backend}")
