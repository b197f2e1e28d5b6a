"""The parameters that the servers keep in asynchronous training (docs/async.md), on each backend of Keras."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from byteps import basics
from byteps.asynchronous import Beginning
from byteps.errors import FailedPreconditionError
from byteps.keras.gradients import refuse_several_devices
from byteps.session import current_session


class ServerParameters(Protocol):
    """The parameters of one optimizer."""

    def step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        """Takes `own_step`, which changes the variables, and makes them those of the servers, with that change. The
        servers begin with the variables that rank 0 has at its first step, for which all ranks wait."""


class _OnTorch:
    """For Keras 3 on PyTorch."""

    def __init__(self) -> None:
        self._beginning = Beginning()

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

        add_to_servers([self._beginning.prefix + name for name in names], changes, range(0, -len(names), -1))

    def _begin(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        import torch

        def values(indices: list[int]) -> list[Any]:
            own = [variables[index].value.detach().clone() for index in indices]
            return own if basics.rank() == 0 else [torch.zeros_like(one) for one in own]

        def add(indices: list[int], values: list[Any]) -> None:
            self._add([names[index] for index in indices], values)

        self._beginning.begin(names, values, add, basics.barrier)


# Optimizers of JAX that have begun, in all sessions: a program keeps the names with which it was traced.
_ON_JAX = itertools.count()


class OnJax:
    """For Keras 3 on JAX. Keras takes the variables' values away while it traces a training step, so that the program
    itself begins: each time it runs it asks whether the servers of this session have the variables already."""

    def __init__(self) -> None:
        self._asked: Any = None  # the session in which a step has begun them
        self._told: Any = None  # that whose servers have them
        self._prefix: str | None = None

    def step(self, variables: Sequence[Any], names: Sequence[str], own_step: Callable[[], Any]) -> Any:
        """Of ServerParameters."""
        before = [variable.value for variable in variables]
        result = own_step()
        after = [variable.value for variable in variables]
        for variable, value in zip(variables, self.exchange(before, after, names)):
            variable.assign(value)
        return result

    def exchange(self, before: Sequence[Any], after: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """What the servers have, with the change from `before` to `after`; arrays of JAX, also in a program."""
        from byteps.jax.versions import is_traced
        from jax import lax
        from jax.experimental import io_callback

        if current_session().native.info()["size"] == 1:
            return list(after)
        refuse_several_devices()
        if self._prefix is None:
            self._prefix = f"AsyncParam.{next(_ON_JAX)}."
        before = list(before)
        changes = [value - start for value, start in zip(after, before)]
        if any(is_traced(change) for change in changes):
            number = np.zeros([], np.int32)
            # It waits for the change: each step asks behind the one before.
            fresh = io_callback(self._has_to_begin, number, *(change.ravel()[:1] for change in changes[:1]))
            # What is added next waits for it.
            changes = lax.cond(fresh > 0, lambda: self._begun(before, names, changes, fresh), lambda: changes)
        elif fresh := int(self._has_to_begin()):
            changes = self._begun(before, names, changes, fresh)
        return self._add(names, changes)

    def _has_to_begin(self, *_: Any) -> np.ndarray:
        """At the first step in a session 2 on rank 0, whose values count, and 1 on the others; else 0."""
        session = current_session()
        if self._told is session:
            return np.array(0, np.int32)
        if self._asked is session:  # what is added again would count twice
            raise FailedPreconditionError(
                "asynchronous training has not begun: an error kept the parameters from the servers, which may have "
                "some of them; shutdown() and init() on all ranks, and begin anew"
            )
        self._asked = session  # servers of another job have nothing of ours
        return np.array(2 if basics.rank() == 0 else 1, np.int32)

    def _has_begun(self, told: Any) -> np.ndarray:
        self._told = self._asked
        return np.asarray(told)

    def _add(self, names: Sequence[str], changes: Sequence[Any]) -> list[Any]:
        from byteps.jax.ops import add_to_servers

        assert self._prefix is not None
        return [
            add_to_servers(self._prefix + name, change, -index)
            for index, (name, change) in enumerate(zip(names, changes))
        ]

    def _begun(self, values: Sequence[Any], names: Sequence[str], changes: Sequence[Any], fresh: Any) -> list[Any]:
        """The changes, when the servers have the values of rank 0; `fresh` is what _has_to_begin() says."""
        import byteps.jax as bps
        import jax.numpy as jnp
        from jax.experimental import io_callback

        added = self._add(names, [jnp.where(fresh == 2, value, jnp.zeros_like(value)) for value in values])
        # What is told depends on rank 0's answers, and the changes on what is told, in a way that no compiler sees
        # through: so nobody adds a change to less than the values.
        answers = sum(value.ravel()[:1].sum().astype("float32") for value in added)
        told = bps.broadcast(jnp.isfinite(answers).astype("int32"), 0, f"{self._prefix}begun")
        told = io_callback(self._has_begun, np.zeros([], np.int32), told)
        return [jnp.where(told >= 0, change, jnp.nan).astype(change.dtype) for change in changes]


def server_parameters(backend: str) -> ServerParameters:
    """Those of a new optimizer."""
    if backend == "torch":
        return _OnTorch()
    if backend == "jax":
        return OnJax()
    from byteps.tensorflow.server_parameters import ServerParameters as OnTensorFlow

    return OnTensorFlow()
