"""ddp_step.py - a training step in PyTorch beside DistributedDataParallel over Gloo, in turns (--help; docs/tools.md).

Unlike train_step.py nothing is slept: a convolutional network of 4.9 million parameters, or more, computes.
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
Times training steps of one network, by each way in turns, so that whatever else the machine does meets all of them
alike. A turn is a few steps of one way in a row, from a barrier until the last of them is done, since overlap_forward
communicates beneath the next forward pass. It is a worker of a job:

    bpslaunch --workers 2 -- .venv/bin/python tools/ddp_step.py
    tools/netlab run --hosts 4 --rate 200mbit -- .venv/bin/python tools/ddp_step.py --batch 1

Rank 0 prints the median step of each way, and its ratio to DistributedDataParallel over Gloo: the median of the ratios
of neighbouring turns. Below 1 is faster.
"""


def _network(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for outputs in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, width), nn.ReLU(), nn.Linear(width, 10))


def _ways(batch: int, row: int, width: int) -> tuple[dict[str, Callable[[], None]], dict[str, nn.Module]]:
    """What takes `row` steps of this many images, by each way, and the networks; all begin with the same weights.
    `width`: of the networks' large linear layer."""
    group = dist.new_group(backend="byteps")
    wraps: dict[str, Callable[[nn.Module], nn.Module]] = {
        "DDP, Gloo": nn.parallel.DistributedDataParallel,
        "DDP, Gloo, again": nn.parallel.DistributedDataParallel,
        "DDP, backend byteps": lambda model: nn.parallel.DistributedDataParallel(model, process_group=group),
        "byteps wrapper": bps.parallel.DistributedDataParallel,
        "DistributedOptimizer": lambda model: model,
        "overlap_forward": lambda model: model,
    }
    source = torch.Generator().manual_seed(bps.rank())
    inputs, labels = torch.randn(batch, 3, 32, 32, generator=source), torch.randint(10, (batch,), generator=source)

    models = {name: _network(width) for name in wraps}

    def make(name: str) -> Callable[[], None]:
        model = models[name]
        run = wraps[name](model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        if run is model:
            parameters = [(f"{name}.{own}", parameter) for own, parameter in model.named_parameters()]
            forward = model if name == "overlap_forward" else None
            optimizer = bps.DistributedOptimizer(optimizer, parameters, overlap_forward=forward)

        def steps() -> None:
            for _ in range(row):
                optimizer.zero_grad()
                nn.functional.cross_entropy(run(inputs), labels).backward()
                optimizer.step()
            if name == "overlap_forward":
                optimizer.finish_step()

        return steps

    return {name: make(name) for name in wraps}, models


def main() -> None:
    """See the description."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10, help="turns of each way that count")
    parser.add_argument("--warm-up", type=int, default=2, help="turns of each way before them")
    parser.add_argument("--row", type=int, default=4, help="steps of a turn")
    parser.add_argument("--batch", type=int, default=8, help="images of each worker in a step; fewer compute less")
    parser.add_argument(
        "--width",
        type=int,
        default=1600,
        help="outputs of the large linear layer: each adds 2059 parameters, and hardly any computation",
    )
    arguments = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="byteps://")
    ways, models = _ways(arguments.batch, arguments.row, arguments.width)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.warm_up + arguments.turns):
        for name, steps in ways.items():
            dist.barrier()
            begin = time.perf_counter()
            steps()
            if turn >= arguments.warm_up:
                seconds[name].append((time.perf_counter() - begin) / arguments.row)
    first = next(iter(ways))
    weights = {name: nn.utils.parameters_to_vector(model.parameters()).detach() for name, model in models.items()}
    for name, own in weights.items():
        # Sums of several workers are rounded in another order, which each step carries further.
        if (own - weights[first]).norm() > 1e-3 * weights[first].norm():
            raise SystemExit(f"{name} has come to other weights than {first}")
    if bps.rank() == 0:
        counts = f"{arguments.turns} turns of {arguments.row} steps of {arguments.batch} images"
        size = 4e-6 * weights[first].numel()
        print(f"{bps.size()} workers, {counts} each, {size:.1f} MB of gradients")
        print(f"{'':>22} {'step ms':>8} {'ratio':>7}")
        for name, found in seconds.items():
            ratio = statistics.median(own / base for own, base in zip(found, seconds[first]))
            print(f"{name:>22} {1e3 * statistics.median(found):8.1f} {ratio:7.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
