"""zero_grad.py - what a step of PyTorch takes by each way to begin it without gradients (--help)."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import byteps.torch as bps
import torch
from torch import nn

_DESCRIPTION = """\
Measures steps of a model with large gradients and little else, by each way in turns, for each size of a gradient. It
checks that all ways come to the same gradients. It is a worker of a job:

    bpslaunch --workers 2 -- .venv/bin/python tools/zero_grad.py

The ways, all of one loop (a hook for each parameter starts the sum into one of two buffers of bps.empty_like(), which
becomes p.grad):

  kept        zero_grad(set_to_none=False): p.grad is zeroed, autograd adds to it, the sum goes into the other buffer
  re-pointed  zero_grad(set_to_none=True) makes the zeroed other buffer p.grad; then as "kept"
  copied      zero_grad(set_to_none=True); the hook copies what autograd has made into a buffer, and sends that
  as made     zero_grad(set_to_none=True); what autograd has made is read where it is

and byteps.torch.DistributedOptimizer with both arguments of zero_grad(). Rank 0 prints the median of a step in
milliseconds, the time that a quarter of the steps kept below, and the ratio of its median to that of the first way.
"""


class _Model(nn.Module):
    """Parameters whose gradients cost one pass over memory each."""

    def __init__(self, count: int, elements: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(elements)) for _ in range(count)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.dot(parameter, inputs) for parameter in self.layers]).sum()


class _Loop:
    """SGD over one of the ways, which say what becomes of gradients before the backward pass and in it."""

    def __init__(self, model: nn.Module) -> None:
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        self.parameters = list(model.parameters())
        self.buffers = {one: [bps.empty_like(one), bps.empty_like(one)] for one in self.parameters}
        self._names = {one: f"{type(self).__name__}.{index}.{one.numel()}" for index, one in enumerate(self.parameters)}
        self._handles: list[tuple[torch.Tensor, torch.Tensor, Any]] = []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._start)

    def _start(self, parameter: torch.Tensor) -> None:
        sent, received = self.places(parameter)
        handle = bps.push_pull_async_into(sent, received, name=self._names[parameter])
        self._handles.append((parameter, received, handle))

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def places(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is sent, and where the sum goes."""
        raise NotImplementedError

    def other(self, parameter: torch.Tensor) -> torch.Tensor:
        """The buffer that is not p.grad."""
        first, second = self.buffers[parameter]
        return second if parameter.grad is first else first

    def step(self) -> None:
        for parameter, received, handle in self._handles:
            bps.synchronize(handle)
            parameter.grad = received
        self._handles.clear()
        self._optimizer.step()


class _Kept(_Loop):
    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=False)

    def places(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return parameter.grad, self.other(parameter)


class _RePointed(_Kept):
    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = self.other(parameter)
        torch._foreach_zero_([parameter.grad for parameter in self.parameters])


class _Copied(_Loop):
    def places(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sent, received = self.buffers[parameter]
        return sent.copy_(parameter.grad), received


class _AsMade(_Loop):
    def places(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return parameter.grad, self.buffers[parameter][0]


class _Distributed:
    """DistributedOptimizer as it is."""

    def __init__(self, model: nn.Module, set_to_none: bool) -> None:
        self._optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-9), model.named_parameters()
        )
        self._set_to_none = set_to_none

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=self._set_to_none)

    def step(self) -> None:
        self._optimizer.step()


_WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "kept": _Kept,
    "re-pointed": _RePointed,
    "copied": _Copied,
    "as made": _AsMade,
    "DistributedOptimizer, False": lambda model: _Distributed(model, set_to_none=False),
    "DistributedOptimizer, True": lambda model: _Distributed(model, set_to_none=True),
}


def _stepper(make: Callable[[nn.Module], Any], count: int, elements: int) -> Callable[[], float]:
    """What takes one step, and returns its seconds."""
    model = _Model(count, elements)
    loop, inputs = make(model), torch.full((elements,), bps.rank() + 1.0)
    mean = (bps.size() + 1) / 2

    def step() -> float:
        begin = time.perf_counter()
        loop.zero_grad()
        model(inputs).backward()
        loop.step()
        taken = time.perf_counter() - begin
        if not all(bool((parameter.grad == mean).all()) for parameter in model.layers):
            raise RuntimeError(f"gradients that are not the mean, {mean}")
        return taken

    return step


def _measure(count: int, elements: int, warm_up: int, steps: int) -> dict[str, list[float]]:
    """Seconds of the steps, by way."""
    ways = {name: _stepper(make, count, elements) for name, make in _WAYS.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + steps):
        for name, step in ways.items():
            bps.barrier()
            seconds = step()
            if turn >= warm_up:
                taken[name].append(seconds)
    return taken


def main() -> None:
    """See the description."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64,1024,16384", help="KiB of a gradient, several by commas (64,1024,16384)")
    parser.add_argument("--step-size", type=int, default=64, help="MiB of a step's gradients, at most 64 of them (64)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each way that count (40)")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each way before them (5)")
    arguments = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    for size in map(int, arguments.sizes.split(",")):
        count = max(1, min(64, (arguments.step_size << 10) // size))
        taken = _measure(count, size * 256, arguments.warm_up, arguments.steps)
        if bps.rank() != 0:
            continue
        print(f"{bps.size()} workers, {count} gradients of {size} KiB, {arguments.steps} steps of each way in turns")
        print(f"{'':>28} {'median ms':>10} {'quarter':>8} {'ratio':>6}")
        first = statistics.median(taken["kept"])
        for name, seconds in taken.items():
            middle, quarter = statistics.median(seconds), statistics.quantiles(seconds, n=4)[0]
            print(f"{name:>28} {1e3 * middle:10.2f} {1e3 * quarter:8.2f} {middle / first:6.2f}", flush=True)


if __name__ == "__main__":
    main()
