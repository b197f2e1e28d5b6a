"""gradient_overhead.py - what a gradient costs the training thread in PyTorch, beside Gloo and DDP (--help).

Gradients are small, so what is measured is not their transport, but what Python does for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import byteps.torch as bps
import torch
import torch.distributed as dist
from torch import nn

_DESCRIPTION = """\
Counts the processor time of the training thread in a step of many small gradients, by each way in turns, and takes off
what the same step takes without any reduction. It is a worker of a job:

    bpslaunch --workers 2 -- .venv/bin/python tools/gradient_overhead.py

The ways: byteps.torch.DistributedOptimizer; "hook, Gloo", Horovod's design over torch.distributed (a hook for each
parameter starts an all_reduce, step() waits for all); DistributedDataParallel over Gloo, whose reducer is C++ and joins
gradients into buckets. Rank 0 prints, for each way, microseconds per gradient (the median of its steps and its fastest
step, less the median and the fastest of those without a reduction), and the ratio of its median to that of "hook,
Gloo". Time that a thread waits is not counted; that of other threads is in the last column.
"""


class _Parameters(nn.Module):
    """As many parameters as asked, each with a gradient."""

    def __init__(self, count: int, elements: int) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(elements)) for _ in range(count)])

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack([(parameter * factor).sum() for parameter in self.all]).sum()


class _HookPerGradient:
    """SGD whose gradients are averaged as Horovod does it, over torch.distributed."""

    def __init__(self, model: nn.Module) -> None:
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self._works: list[tuple[Any, torch.Tensor]] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._start)

    def _start(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self._works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        for work, gradient in self._works:
            work.wait()
            gradient.div_(dist.get_world_size())
        self._works.clear()
        self._optimizer.step()


def _ways(count: int, elements: int) -> dict[str, Callable[[], None]]:
    """What takes one step, by each way."""

    def sgd(model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def distributed(model: nn.Module) -> Any:
        return bps.DistributedOptimizer(sgd(model), model.named_parameters())

    def unwrapped(model: nn.Module) -> nn.Module:
        return model

    made: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], Any]]] = {
        "none": (unwrapped, sgd),
        "hook, Gloo": (unwrapped, _HookPerGradient),
        "DDP, Gloo": (nn.parallel.DistributedDataParallel, sgd),
        "DistributedOptimizer": (unwrapped, distributed),
    }

    def make(wrap: Callable[[nn.Module], nn.Module], optimize: Callable[[nn.Module], Any]) -> Callable[[], None]:
        model = _Parameters(count, elements)
        run, optimizer, factor = wrap(model), optimize(model), torch.ones(())

        def step() -> None:
            optimizer.zero_grad()
            run(factor).backward()
            optimizer.step()

        return step

    return {name: make(*both) for name, both in made.items()}


def main() -> None:
    """See the description."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", type=int, default=200, help="of a step (200)")
    parser.add_argument("--elements", type=int, default=256, help="float32 values of a gradient (256)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each way that count (40)")
    parser.add_argument("--warm-up", type=int, default=10, help="steps of each way before them (10)")
    arguments = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="byteps://")
    ways = _ways(arguments.gradients, arguments.elements)
    # By way: of the training thread, and of the whole process.
    own: dict[str, list[float]] = {name: [] for name in ways}
    whole: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.warm_up + arguments.steps):
        for name, step in ways.items():
            dist.barrier()
            begins = time.thread_time(), time.process_time()
            step()
            ends = time.thread_time(), time.process_time()
            if turn >= arguments.warm_up:
                own[name].append(1e6 * (ends[0] - begins[0]) / arguments.gradients)
                whole[name].append(1e6 * (ends[1] - begins[1]) / arguments.gradients)
    if bps.rank() == 0:
        print(
            f"{bps.size()} workers, {arguments.gradients} gradients of {arguments.elements} float32 values, "
            f"{arguments.steps} steps of each way in turns; us per gradient"
        )
        print(f"{'':>22} {'median':>8} {'fastest':>8} {'ratio':>7} {'whole process':>14}")

        def added(times: dict[str, list[float]], name: str, of: Callable[[list[float]], float]) -> float:
            return of(times[name]) - of(times["none"])

        peer = added(own, "hook, Gloo", statistics.median)
        for name in list(ways)[1:]:
            middle, least = added(own, name, statistics.median), added(own, name, min)
            process = added(whole, name, statistics.median)
            print(f"{name:>22} {middle:8.1f} {least:8.1f} {middle / peer:7.2f} {process:14.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
