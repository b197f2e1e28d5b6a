"""What an elastic training function works on: committed, restored, and made alike on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from byteps.basics import size
from byteps.errors import HostsUpdatedInterrupt
from byteps.reduce_op import Max
from byteps.torch.elastic.sampler import ElasticSampler
from byteps.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from byteps.torch.ops import push_pull_inplace

import torch


class State:
    """The interface: subclasses say what is saved, restored and sent."""

    def __init__(self) -> None:
        self.commits = 0  # how often commit() was called
        self._reset_callbacks: list[Callable[[], None]] = []
        self._updated: HostsUpdatedInterrupt | None = None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls these after each reset, in this order: for what depends on the number of workers, such as the learning
        rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The session was joined anew."""
        self._updated = None
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, skip_sync: bool = False) -> None:
        """The members will change: the next commit() or check_host_updates() interrupts the function.

        Args:
            timestamp: accepted for compatibility.
            skip_sync: members are only removed.
        """
        del timestamp
        self._updated = HostsUpdatedInterrupt(skip_sync)

    def commit(self) -> None:
        """Saves the state; a failure takes training back to here. Then check_host_updates()."""
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt if on_hosts_updated() was called on any rank; all ranks do so together."""
        mine = 0 if self._updated is None else 1 if self._updated.skip_sync else 2
        most = push_pull_inplace(torch.tensor([mine], dtype=torch.int32), name="elastic.updates", op=Max).item()
        if most > 0:
            raise HostsUpdatedInterrupt(skip_sync=most == 1)

    def save(self) -> None:
        """Keeps the state in memory, for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what save() has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts to a session that was joined anew."""


class ObjectState(State):
    """Plain attributes.

    Args:
        values: names and values that can be pickled; attributes of the state from then on.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        ObjectState.save(self)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Sets the attributes to what was kept."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Sets the attributes to those of rank 0, and saves."""
        if self._names:
            self._set(broadcast_object(self._values(), 0))
        self.save()


class _Module:
    """Saves and shares a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._module.state_dict())

    def restore(self) -> None:
        self._module.load_state_dict(self._saved)

    def sync(self) -> None:
        broadcast_parameters(self._module.state_dict(), 0)
        self.save()


class _Optimizer:
    """Saves and shares an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._optimizer.state_dict())

    def restore(self) -> None:
        # What a failed step has left: gradients that are still counted as computed.
        reset = getattr(self._optimizer, "forget_gradients", None)
        if reset is not None:
            reset()
        self._optimizer.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        broadcast_optimizer_state(self._optimizer, 0)
        self.save()


class _Sampler:
    """Saves and shares an ElasticSampler: what any rank has processed counts for all."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._sampler.state_dict())

    def restore(self) -> None:
        self._sampler.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        states = [broadcast_object(self._sampler.state_dict(), root) for root in range(size())]
        processed = set().union(*(state["processed_indices"] for state in states))
        self._sampler.load_state_dict({**states[0], "processed_indices": processed})
        self.save()


_HANDLERS: tuple[tuple[type, type], ...] = (
    (torch.nn.Module, _Module),
    (torch.optim.Optimizer, _Optimizer),
    (ElasticSampler, _Sampler),
)


class TorchState(ObjectState):
    """A model, an optimizer, and whatever else training needs.

    Args:
        model: a torch.nn.Module, or None.
        optimizer: a torch.optim.Optimizer or DistributedOptimizer, or None.
        others: by name: modules, optimizers and ElasticSamplers are saved and shared by their own means, everything
            else by pickling.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **others: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **others}
        self._handlers: dict[str, Any] = {}
        plain = {}
        for name, value in given.items():
            handler = next((made for kind, made in _HANDLERS if isinstance(value, kind)), None)
            if handler is not None:
                self._handlers[name] = handler(value)
                setattr(self, name, value)
            elif value is not None or name not in ("model", "optimizer"):
                plain[name] = value
        super().__init__(**plain)

    def save(self) -> None:
        """Keeps everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Samplers divide what is left among the workers that there are now."""
        for name in self._handlers:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.reset()
