"""The state of PyTorch's modules, optimizers, samplers, and of what has a state_dict."""

from __future__ import annotations

import copy
from typing import Any

from byteps.basics import size
from byteps.elastic.state import ObjectState
from byteps.torch.elastic.sampler import ElasticSampler
from byteps.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

import torch


class _Module:
    """Saves and shares a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._module.state_dict())

    def restore(self) -> None:
        self._module.load_state_dict(self._saved)

    def sync(self, root_rank: int) -> None:
        broadcast_parameters(self._module.state_dict(), root_rank)
        self.save()


class _Optimizer:
    """Saves and shares an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._optimizer.state_dict())

    def forget_gradients(self) -> None:
        """Of a DistributedOptimizer: gives up what a failed step has left, on its way or counted as computed."""
        forget = getattr(self._optimizer, "forget_gradients", None)
        if forget is not None:
            forget()

    def restore(self) -> None:
        self._optimizer.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root_rank: int, model: torch.nn.Module | None = None) -> None:
        """`model`: whose parameters these are; it tells which gradients are sparse."""
        broadcast_optimizer_state(self._optimizer, root_rank, model=model)
        self.save()


class _Sampler:
    """Saves and shares an ElasticSampler: what any rank has processed counts for all."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self.save()

    def save(self) -> None:
        self._saved = self._sampler.recorded()

    def restore(self) -> None:
        self._sampler.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root_rank: int) -> None:
        states = [broadcast_object(self._sampler.recorded(), root) for root in range(size())]
        processed = set().union(*(state["processed_indices"] for state in states))
        self._sampler.load_state_dict({**states[root_rank], "processed_indices": processed})
        self.save()


class _Stateful:
    """Saves and shares what has a state_dict, such as a learning rate scheduler, whose copy would drive a copy of the
    optimizer."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._value.state_dict())

    def restore(self) -> None:
        self._value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root_rank: int) -> None:
        self._value.load_state_dict(broadcast_object(self._value.state_dict(), root_rank))
        self.save()


_HANDLERS: tuple[tuple[type, type], ...] = (
    (torch.nn.Module, _Module),
    (torch.optim.Optimizer, _Optimizer),
    (ElasticSampler, _Sampler),
)


def _handler_for(value: Any) -> Any:
    """What saves and shares the value; None: it is pickled."""
    for kind, made in _HANDLERS:
        if isinstance(value, kind):
            return made(value)
    has_state = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
    return _Stateful(value) if has_state and not isinstance(value, type) else None


class TorchState(ObjectState):
    """A model, an optimizer, and whatever else training needs.

    Each is an attribute of the state. Another module, optimizer, sampler or scheduler may be assigned to it: from then
    on that one is saved, restored and shared, and it is saved at once.

    Args:
        model: a torch.nn.Module, or None.
        optimizer: a torch.optim.Optimizer or DistributedOptimizer, or None.
        others: by name: modules, optimizers and ElasticSamplers are saved and shared by their own means; what has a
            state_dict and load_state_dict, such as learning rate schedulers and GradScaler, by these (sync() loads the
            root's on all ranks); everything else by pickling.

    Raises:
        TypeError: in an assignment, if a module, optimizer, sampler or scheduler is to be replaced by something else; a
            value that cannot be copied.
    """

    _handlers: dict[str, Any] | None = None  # until the constructor has made it

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **others: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **others}
        handlers, plain = {}, {}
        for name, value in given.items():
            handler = _handler_for(value)
            if handler is not None:
                handlers[name] = handler
            if handler is not None or value is None:
                setattr(self, name, value)
            if handler is None and (value is not None or name not in ("model", "optimizer")):
                plain[name] = value
        super().__init__(**plain)
        self._handlers = handlers

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self._handlers
        if handlers is not None and (name in handlers or name in ("model", "optimizer") or name in self._names):
            handler = _handler_for(value)
            if handler is not None:
                handlers[name] = handler
                if name in self._names:
                    self._names.remove(name)
                    self._saved.pop(name)
            elif name in handlers:
                raise TypeError(
                    f"{name} is a {type(value).__name__}; the state has a {type(getattr(self, name)).__name__} under "
                    "this name, which a module, an optimizer, an ElasticSampler or what has a state_dict may replace"
                )
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps everything in memory."""
        for handler in (self._handlers or {}).values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept."""
        handlers = (self._handlers or {}).values()
        # All of them first: with overlap_forward, a module's parameters wait for the updates of the failed step.
        for handler in handlers:
            if isinstance(handler, _Optimizer):
                handler.forget_gradients()
        for handler in handlers:
            handler.restore()
        super().restore()

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks the state of the root, and saves."""
        model = getattr(self, "model", None)
        for handler in (self._handlers or {}).values():
            if isinstance(handler, _Optimizer):
                handler.sync(root_rank, model if isinstance(model, torch.nn.Module) else None)
            else:
                handler.sync(root_rank)
        super().sync(root_rank)

    def reset(self) -> None:
        """Samplers divide what is left among the workers that there are now."""
        for name in self._handlers or {}:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.reset()
