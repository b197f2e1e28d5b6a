"""ddp_step.py - a training step in PyTorch beside DistributedDataParallel over Gloo, in turns (--help; docs/tools.md).

Unlike train_step.py nothing is slept: a convolutional network of 4.9 million parameters computes.
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
Times a training step of one network, by each way in turns, so that whatever else the machine does meets all of them
alike. It is a worker of a job:

    bpslaunch --workers 2 -- .venv/bin/python tools/ddp_step.py
    tools/netlab run --hosts 4 --rate 200mbit -- .venv/bin/python tools/ddp_step.py --batch 1

Rank 0 prints the median step of each way, and its ratio to DistributedDataParallel over Gloo: the median of the ratios
of neighbouring steps. Below 1 is faster.
"""


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 1600), nn.ReLU(), nn.Linear(1600, 10))


def _ways(batch: int) -> tuple[dict[str, Callable[[], None]], dict[str, nn.Module]]:
    """What takes one step of this many images, by each way, and the networks; all begin with the same weights."""
    group = dist.new_group(backend="byteps")
    wraps: dict[str, Callable[[nn.Module], nn.Module]] = {
        "DDP, Gloo": nn.parallel.DistributedDataParallel,
        "DDP, Gloo, again": nn.parallel.DistributedDataParallel,
        "DDP, backend byteps": lambda model: nn.parallel.DistributedDataParallel(model, process_group=group),
        "byteps wrapper": bps.parallel.DistributedDataParallel,
        "DistributedOptimizer": lambda model: model,
    }
    source = torch.Generator().manual_seed(bps.rank())
    inputs, labels = torch.randn(batch, 3, 32, 32, generator=source), torch.randint(10, (batch,), generator=source)

    models = {name: _network() for name in wraps}

    def make(name: str) -> Callable[[], None]:
        model = models[name]
        run = wraps[name](model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        if run is model:
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(inputs), labels).backward()
            optimizer.step()

        return step

    return {name: make(name) for name in wraps}, models


def main() -> None:
    """See the description."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps of each way that count")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each way before them")
    parser.add_argument("--batch", type=int, default=8, help="images of each worker in a step; fewer compute less")
    arguments = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="byteps://")
    ways, models = _ways(arguments.batch)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.warm_up + arguments.steps):
        for name, step in ways.items():
            dist.barrier()
            begin = time.perf_counter()
            step()
            if turn >= arguments.warm_up:
                seconds[name].append(time.perf_counter() - begin)
    first = next(iter(ways))
    for name, model in models.items():
        for own, other in zip(model.parameters(), models[first].parameters()):
            if not torch.allclose(own, other, rtol=1e-3, atol=1e-5):
                raise SystemExit(f"{name} has come to other weights than {first}")
    if bps.rank() == 0:
        print(f"{bps.size()} workers, {arguments.steps} steps of {arguments.batch} images each in turns")
        print(f"{'':>22} {'step ms':>8} {'ratio':>7}")
        for name, found in seconds.items():
            ratio = statistics.median(own / base for own, base in zip(found, seconds[first]))
            print(f"{name:>22} {1e3 * statistics.median(found):8.1f} {ratio:7.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
