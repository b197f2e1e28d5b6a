"""A training step without the computation: layers are slept through, gradients travel for real.

    seconds = replay(model, PushPull(bps, model), iterations=5, warm_up=2)      # of each step but the first two
    seconds = replay(model, Buckets(group, model), iterations=5, warm_up=2)     # as DistributedDataParallel does it

Everything of a rank happens in the order of a training loop with one update per tensor: the forward pass waits for the
new value of a tensor where its layer begins, the backward pass hands in a gradient when it is ready. To write it is a
part of the computation, and done in the computation's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .model import Model, Tensor

_SHORT = 2e-4  # sleeps below this are put off
_BLOCKED = 1e-4  # a wait that took longer was one
_FIRST_BUCKET = 1 << 20  # DistributedDataParallel's
_BUCKET = 25 << 20


class Exchange(Protocol):
    """How gradients become sums."""

    def write(self, tensor: Tensor) -> None:
        """The computation of the gradient goes on: it is written."""

    def hand_in(self, tensor: Tensor) -> None:
        """The gradient is ready."""

    def end_of_backward(self) -> None:
        """All are handed in."""

    def wait_for(self, tensor: Tensor) -> None:
        """Its layer is about to begin."""


class Clock:
    """The time up to which the computation has been done."""

    def __init__(self) -> None:
        self._done = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Goes on computing for so long."""
        self._done += seconds
        left = self._done - time.perf_counter()
        if left > _SHORT:
            time.sleep(left)

    def wait(self, call: Callable[[], None]) -> None:
        """Waits for something; what has kept us cannot be caught up. (A sleep that was too long can.)"""
        before = time.perf_counter()
        call()
        after = time.perf_counter()
        if after - before > _BLOCKED:
            self._done = max(self._done, after)


def replay(model: Model, exchange: Exchange, iterations: int, warm_up: int) -> list[float]:
    """Seconds of each step behind the first `warm_up`, from the beginning of a backward pass to the next."""
    by_ready = sorted(model.tensors, key=lambda tensor: tensor.ready)
    clock = Clock()
    times = []
    for iteration in range(iterations + warm_up):
        started = time.perf_counter()
        at = 0.0
        for tensor in by_ready:
            exchange.write(tensor)
            clock.compute(tensor.ready - at)
            at = tensor.ready
            exchange.hand_in(tensor)
        clock.compute(model.backward - at)
        clock.wait(exchange.end_of_backward)
        at = 0.0
        for tensor in model.tensors:
            clock.compute(tensor.begins - at)
            at = tensor.begins
            clock.wait(lambda tensor=tensor: exchange.wait_for(tensor))
        clock.compute(model.forward - at)
        if iteration >= warm_up:
            times.append(time.perf_counter() - started)
    return times


def _gradient(tensor: Tensor, rank: int) -> torch.Tensor:
    # Small whole numbers: sums are exact.
    return (torch.arange(tensor.elements) % 5).to(torch.float32) + rank


def _check(tensor: Tensor, result: torch.Tensor, size: int) -> None:
    expected = (torch.arange(tensor.elements) % 5).to(torch.float32) * size + sum(range(size))
    if not torch.equal(result, expected):
        raise SystemExit(f"bps_perf: wrong sum of {tensor.name}")


class PushPull:
    """BytePS, with the priority of the order in which layers begin."""

    def __init__(self, bps: Any, model: Model) -> None:
        self._bps = bps
        self._inputs = {each.name: _gradient(each, bps.rank()) for each in model.tensors}
        self._buffers = {name: torch.empty_like(each) for name, each in self._inputs.items()}
        self._priority = {each.name: -number for number, each in enumerate(model.tensors)}
        self._handles: dict[str, Any] = {}
        for tensor in model.tensors:
            bps.declare(f"replay.{tensor.name}", self._inputs[tensor.name])

    def write(self, tensor: Tensor) -> None:
        """Into the buffer that the last step's sum was in."""
        self._buffers[tensor.name].copy_(self._inputs[tensor.name])

    def hand_in(self, tensor: Tensor) -> None:
        """Starts its push_pull."""
        self._handles[tensor.name] = self._bps.push_pull_async_inplace(
            self._buffers[tensor.name],
            average=False,
            name=f"replay.{tensor.name}",
            priority=self._priority[tensor.name],
        )

    def end_of_backward(self) -> None:
        """Nothing to do."""

    def wait_for(self, tensor: Tensor) -> None:
        """Waits for its push_pull."""
        self._handles.pop(tensor.name).synchronize()

    def check(self, model: Model) -> None:
        """The sums of the last step."""
        for tensor in model.tensors:
            _check(tensor, self._buffers[tensor.name], self._bps.size())


class Buckets:
    """torch.distributed with buckets, started as they fill up in the backward pass, awaited at its end."""

    def __init__(self, group: Any, model: Model, shrink: int) -> None:
        self._group = group
        self._works: list[Any] = []
        self._bucket_of: dict[str, int] = {}
        self._flat: list[torch.Tensor] = []
        self._left: list[int] = []
        self._sizes: list[int] = []
        limit, size, count = _FIRST_BUCKET / shrink, 0, 0
        for tensor in sorted(model.tensors, key=lambda tensor: tensor.ready):
            if count > 0 and size + tensor.size > limit:
                self._close(size, count)
                limit, size, count = _BUCKET / shrink, 0, 0
            self._bucket_of[tensor.name] = len(self._flat)
            size, count = size + tensor.size, count + 1
        self._close(size, count)

    def _close(self, size: int, count: int) -> None:
        self._flat.append(torch.zeros(size // 4))
        self._sizes.append(count)
        self._left.append(count)

    def write(self, tensor: Tensor) -> None:
        """A bucket is written when its first gradient is."""
        bucket = self._bucket_of[tensor.name]
        if self._left[bucket] == self._sizes[bucket]:
            self._flat[bucket].fill_(1)

    def hand_in(self, tensor: Tensor) -> None:
        """Starts the bucket if this was its last."""
        bucket = self._bucket_of[tensor.name]
        self._left[bucket] -= 1
        if self._left[bucket] == 0:
            self._works.append(self._group.all_reduce(self._flat[bucket], async_op=True))

    def end_of_backward(self) -> None:
        """Waits for all."""
        for work in self._works:
            work.wait()
        self._works = []
        self._left = list(self._sizes)

    def wait_for(self, tensor: Tensor) -> None:
        """Nothing to do: all has come."""

    def check(self, size: int) -> None:
        """The sums of the last step."""
        for flat in self._flat:
            if not bool((flat == size).all()):
                raise SystemExit("bps_perf: wrong sum of a bucket")
