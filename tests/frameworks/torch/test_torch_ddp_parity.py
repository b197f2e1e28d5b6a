"""Two hundred steps beside torch's DistributedDataParallel over Gloo: the same bits with two workers, and nearly the
same with more; the same bits in every run, however the job is set up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from torch import nn

RunWorkers = Callable[..., Any]

STEPS = 200


class _Network(nn.Module):
    """A small convolutional network, of functions without a kink."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            *self.nonlinear(),
            nn.Flatten(),
            nn.Linear(128, 160),
            nn.Linear(160, 5),
        )

    def nonlinear(self) -> tuple[nn.Module, nn.Module]:
        return nn.SiLU(), nn.AvgPool2d(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class _KinkedNetwork(_Network):
    """Likewise, with kinks. A rounding may choose the other side of one: then weights go apart, whoever adds."""

    def nonlinear(self) -> tuple[nn.Module, nn.Module]:
        return nn.ReLU(), nn.MaxPool2d(2)


class _Transformer(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(inputs)).mean(1))


def _batch(kind: type, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    if issubclass(kind, _Network):
        inputs = torch.randn(4, 1, 8, 8, generator=generator)
    else:
        inputs = torch.randint(20, (4, 6), generator=generator)
    return inputs, torch.randint(5, (4,), generator=generator)


def _train(kind: type, way: str, dtype: torch.dtype, steps: int) -> torch.Tensor:
    """All weights, after the steps."""
    torch.manual_seed(0)
    model = kind().to(dtype)
    wrapped: nn.Module = model
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if way in ("gloo", "backend", "hook"):
        wrapped = nn.parallel.DistributedDataParallel(model)
        if way == "hook":
            wrapped.register_comm_hook(None, bps.comm_hook)
    elif way == "wrapper":
        wrapped = bps.parallel.DistributedDataParallel(model)
    else:
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(steps):
        inputs, labels = _batch(kind, step, bps.rank())
        if inputs.is_floating_point():
            inputs = inputs.to(dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


SMOOTH: dict[str, type] = {"network": _Network, "transformer": _Transformer}
KINDS: dict[str, type] = {**SMOOTH, "kinked": _KinkedNetwork}


def _all_ways(
    kind: str, ways: tuple[str, ...], dtype: torch.dtype = torch.float32, steps: int = STEPS
) -> dict[str, torch.Tensor]:
    bps.init()
    torch.set_num_threads(1)
    backend = "gloo" if "gloo" in ways else "byteps"
    dist.init_process_group(backend, init_method="byteps://")
    found = {way: _train(KINDS[kind], way, dtype, steps) for way in ways}
    dist.destroy_process_group()
    return found


WAYS = ("gloo", "wrapper", "optimizer")


def _furthest_from_gloo(results: list[dict[str, torch.Tensor]]) -> float:
    """In the 2-norm of all weights, relative; checks that all workers have the same bits."""
    furthest = 0.0
    for result in results:
        gloo = result["gloo"]
        for way in WAYS[1:]:
            assert torch.equal(result[way], results[0][way]), "all workers have the same bits"
            furthest = max(furthest, float(torch.linalg.norm(result[way] - gloo) / torch.linalg.norm(gloo)))
    return furthest


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_bits_of_gloo(run_workers: RunWorkers, kind: str) -> None:
    """Two workers: a sum of two has one order."""
    for result in run_workers(_all_ways, kind, WAYS, workers=2, servers=0).results:
        for way in WAYS[1:]:
            assert torch.equal(result[way], result["gloo"]), way


# With more workers the sums have another order than Gloo's: a rounding each, which training hands on.


@pytest.mark.parametrize("kind", sorted(SMOOTH))
@pytest.mark.parametrize("workers", [3, 4])
def test_beside_gloo(run_workers: RunWorkers, workers: int, kind: str) -> None:
    results = run_workers(_all_ways, kind, WAYS, workers=workers, servers=0).results
    assert _furthest_from_gloo(results) < 1e-6


@pytest.mark.parametrize("workers", [3, 4])
def test_beside_gloo_with_kinks(run_workers: RunWorkers, workers: int) -> None:
    """In float64: of inputs that differ in the 16th digit none comes to lie on the other side of a kink."""
    results = run_workers(_all_ways, "kinked", WAYS, torch.float64, workers=workers, servers=0).results
    assert _furthest_from_gloo(results) < 1e-12


def _all_kinds() -> list[torch.Tensor]:
    return [_all_ways(kind, ("optimizer",))["optimizer"] for kind in sorted(KINDS)]


def _all_ways_of_ours() -> list[torch.Tensor]:
    return list(_all_ways("transformer", ("optimizer", "wrapper", "hook", "backend"), steps=30).values())


# By the number of servers; the second is the first once more: nothing depends on who comes first.
SETUPS: tuple[tuple[int, dict[str, str]], ...] = (
    (0, {}),
    (0, {}),
    (1, {"BYTEPS_SHM": "0", "BYTEPS_SCHEDULER": "fifo"}),
    (2, {"BYTEPS_PARTITION_BYTES": "20000"}),
    (3, {"BYTEPS_PARTITION_BYTES": "4096", "BYTEPS_SCHEDULER": "priority"}),
)


@pytest.mark.parametrize(
    ("body", "workers", "setups"),
    [(_all_kinds, 3, SETUPS), (_all_ways_of_ours, 2, SETUPS[1::3]), (_all_ways_of_ours, 4, SETUPS[::2])],
)
def test_the_same_bits_however_the_job_is_set_up(
    run_workers: RunWorkers, body: Callable[[], list[torch.Tensor]], workers: int, setups: Sequence[Any]
) -> None:
    found = [run_workers(body, workers=workers, servers=servers, **options).results[0] for servers, options in setups]
    for number, weights in enumerate(found[1:], 1):
        assert all(torch.equal(one, first) for one, first in zip(weights, found[0])), number
