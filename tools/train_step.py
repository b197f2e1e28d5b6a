"""train_step.py - what overlap_forward is worth to a training loop in PyTorch (--help; docs/tools.md).

Unlike `bps_perf --model`, which replays a step by hand, this is a training script as users write it: a torch.nn.Module,
autograd, an optimizer, DistributedOptimizer or DistributedDataParallel. Only the computation of its layers is slept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import byteps.torch as bps
import torch
from perf.bound import at_the_end, bound
from perf.gloo import Gloo
from perf.model import Model, Tensor, known_models, read_model
from perf.replay import Clock
from perf.row import percentile
from torch import nn

_DESCRIPTION = """\
Trains a network whose layers sleep for as long as their profile says, with DistributedOptimizer, without and with
overlap_forward, and with DistributedDataParallel over Gloo. It is a worker of a job, such as one that netlab runs:

    tools/netlab run --hosts 4 --rate 200mbit -- .venv/bin/python tools/train_step.py --model vgg16 --shrink 8

A step goes from the beginning of a backward pass to the beginning of the next. All train the same weights, to the bit.
"""

_BLOCKED = 1e-4  # a layer that begins so many seconds behind the one before it has waited


class _Pace:
    """The computation of a rank: what was slept too long is caught up, what was waited for is not."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._last = time.perf_counter()

    def compute(self, seconds: float) -> None:
        self._clock.compute(seconds)
        self._last = time.perf_counter()

    def arrive(self) -> None:
        """The next layer begins, or the backward pass does."""
        if time.perf_counter() - self._last > _BLOCKED:
            self._clock = Clock()


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, layer: _Layer, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        layer.pace.arrive()
        layer.pace.compute(layer.forward_seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        layer = ctx.layer
        made = [each.clone() for each in layer.gradients]
        layer.pace.compute(layer.backward_seconds)
        return gradients[0], None, *made


class _Layer(nn.Module):
    """The tensors of one module of the profiled network."""

    def __init__(self, pace: _Pace, tensors: list[Tensor]) -> None:
        super().__init__()
        self.pace = pace
        self.begins = min(tensor.begins for tensor in tensors)
        self.ready = max(tensor.ready for tensor in tensors)
        self.forward_seconds = self.backward_seconds = 0.0
        for tensor in tensors:
            self.register_parameter(tensor.name.rpartition(".")[2], nn.Parameter(torch.zeros(tensor.elements)))
        # Small whole numbers: sums, and the weights that come of them, are exact.
        self.gradients = [(torch.arange(tensor.elements) % 5).float() + bps.rank() for tensor in tensors]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(value, self, *self.parameters())


class _Network(nn.Module):
    """A chain of such layers, in the order in which they begin."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pace = _Pace()
        names: dict[str, list[Tensor]] = {}
        for tensor in model.tensors:
            names.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
        layers = sorted((_Layer(self.pace, tensors) for tensors in names.values()), key=lambda layer: layer.begins)
        self.before = layers[0].begins
        ends = [layer.begins for layer in layers[1:]] + [model.forward]
        at = 0.0
        for layer, end in zip(layers, ends):
            layer.forward_seconds = end - layer.begins
        for layer in reversed(layers):
            layer.backward_seconds = max(0.0, layer.ready - at)
            at = max(at, layer.ready)
        self.after = model.backward - at
        self.layers = nn.Sequential(*layers)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.pace.arrive()
        self.pace.compute(self.before)
        return self.layers(value)


Steps = tuple[list[float], list[torch.Tensor]]


def _train(network: _Network, call: Callable[[torch.Tensor], torch.Tensor], optimizer: Any, steps: int) -> Steps:
    """Seconds of each step, and the weights."""
    times = []
    inputs = torch.zeros(1, requires_grad=True)
    loss = call(inputs)
    bps.barrier()
    for _ in range(steps):
        started = time.perf_counter()
        network.pace.arrive()
        loss.sum().backward()
        network.pace.compute(network.after)
        optimizer.step()
        optimizer.zero_grad()
        loss = call(inputs)
        times.append(time.perf_counter() - started)
    loss.sum().backward()
    optimizer.step()
    return times, [parameter.detach().clone() for parameter in network.parameters()]


@contextmanager
def _session() -> Iterator[None]:
    bps.init()
    yield
    bps.shutdown()


def _by_byteps(model: Model, steps: int, overlap: bool) -> Steps:
    with _session():
        network = _Network(model)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=2**-10),
            network.named_parameters(),
            overlap_forward=network if overlap else None,
        )
        return _train(network, network, optimizer, steps)


def _by_gloo(model: Model, steps: int, shrink: int) -> Steps:
    with _session():
        group = Gloo(bps)
        network = _Network(model)
        parallel = nn.parallel.DistributedDataParallel(network, bucket_cap_mb=25 / shrink, gradient_as_bucket_view=True)
        result = _train(network, parallel, torch.optim.SGD(network.parameters(), lr=2**-10), steps)
        group.close()
        return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train_step.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vgg16", help=f"{', '.join(known_models())}, or a file (with a slash)")
    parser.add_argument("--shrink", type=int, default=1, help="tensors and buckets so many times smaller")
    parser.add_argument("--compute", type=float, help="seconds of the computation of a step; default: the profile's")
    parser.add_argument("--steps", type=int, default=9, help="steps that count")
    parser.add_argument("--warm-up", type=int, default=8, help="steps before that do not")
    parser.add_argument("--against", choices=["gloo"], help="DistributedDataParallel over Gloo, too")
    arguments = parser.parse_args()
    if min(arguments.shrink, arguments.steps) < 1 or arguments.warm_up < 0:
        parser.error("--shrink and --steps must be positive, --warm-up not negative")
    return arguments


def main() -> int:
    """The process's exit status."""
    arguments = _arguments()
    torch.set_num_threads(1)
    try:
        model = read_model(arguments.model).shrunk(arguments.shrink)
    except ValueError as error:
        print(f"train_step.py: {error}", file=sys.stderr)
        return 2
    model = model.lasting(arguments.compute) if arguments.compute else model
    with _session():
        rank, size = bps.rank(), bps.size()
    # What netlab has measured: of a plain socket, and what the shares of the servers make of it.
    rate = float(os.environ.get("NETLAB_BYTES_PER_SECOND", "0"))
    factor = float(os.environ.get("NETLAB_OPTIMUM", "1"))
    ring = 2 * (size - 1) / size
    steps = arguments.steps + arguments.warm_up
    ways: list[tuple[str, Callable[[], Steps], float | None]] = [
        ("step() waits", lambda: _by_byteps(model, steps, False), at_the_end(model, factor / rate) if rate else None),
        ("overlap_forward", lambda: _by_byteps(model, steps, True), bound(model, factor / rate) if rate else None),
    ]
    if arguments.against:
        least = at_the_end(model, ring / rate) if rate else None
        ways.append(("DDP, Gloo", lambda: _by_gloo(model, steps, arguments.shrink), least))
    if rank == 0:
        print(
            f"{size} workers; {model.source}\n{len(model.tensors)} gradients, {model.size / 1e6:.1f} MB; computation "
            f"{model.forward + model.backward:.3f} s ({model.forward:.3f} forward)"
        )
        print(f"{'':>16} {'step s':>9} {'p90 s':>9} {'least s':>9} {'ratio':>7}", flush=True)
    first: Steps | None = None
    reference = 0.0
    for name, way, least in ways:
        times, weights = way()
        times = times[arguments.warm_up :]
        if first is None:
            first, reference = (times, weights), statistics.median(times)
        if not all(torch.equal(ours, others) for ours, others in zip(weights, first[1])):
            raise SystemExit(f"train_step.py: {name}: other weights than by {ways[0][0]}")
        if rank == 0:
            median = statistics.median(times)
            bounded = f"{least:>9.3f}" if least else f"{'':>9}"
            line = f"{name:>16} {median:>9.3f} {percentile(times, 90):>9.3f} {bounded} {median / reference:>7.3f}"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
