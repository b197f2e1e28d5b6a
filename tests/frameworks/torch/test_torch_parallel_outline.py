"""byteps.torch.parallel.DistributedDataParallel of models that differ between ranks: an error of all, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel
from jobs import Outcomes
from torch import nn

# Of an operation that waits for a rank which has not called it; the errors here come without one.
_SOON = 30.0


def _refused(
    model: nn.Module, words: str, error: type[Exception] = bps.FailedPreconditionError, **options: Any
) -> None:
    """The model is not wrapped, and the next one is."""
    begun = time.monotonic()
    with pytest.raises(error, match=words):
        DistributedDataParallel(model, **options)
    assert time.monotonic() - begun < _SOON
    good = DistributedDataParallel(nn.Linear(2, 2))
    good(torch.full((1, 2), float(bps.rank()))).sum().backward()
    assert good.module.weight.grad.tolist() == [[0.5, 0.5]] * 2


def _other_shapes() -> None:
    bps.init()
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4 + bps.rank()))
    shapes = r"rank 0 has 1\.weight \(shape \(4, 3\), .*rank 1 has 1\.weight \(shape \(5, 3\), "
    _refused(model, shapes)
    _refused(model, shapes, init_sync=False)


def _other_data_types() -> None:
    bps.init()
    model = nn.Linear(2, 3)
    if bps.rank() == 1:
        model.bias.data = model.bias.data.double()
    _refused(model, r"rank 0 has bias \(shape \(3,\), float32.*rank 1 has bias \(shape \(3,\), float64")


def _other_numbers_of_parameters() -> None:
    bps.init()
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(2 + bps.rank())])
    _refused(model, r"rank 0 has no 2\.weight, rank 1 has 2\.weight")
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(3 - bps.rank())])
    _refused(model, r"rank 0 has 2\.weight \(.*\), rank 1 has no 2\.weight")


def _other_gradients() -> None:
    bps.init()
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(bps.rank() == 0)
    _refused(model, r"rank 0 has bias \(.*requires_grad=True\), rank 1 has bias \(.*requires_grad=False\)")


def _other_buffers() -> None:
    bps.init()
    model = nn.Linear(2, 2)
    model.register_buffer("seen", torch.zeros(1 + bps.rank()))
    _refused(model, r"rank 0 has seen \(shape \(1,\).*rank 1 has seen \(shape \(2,\)")
    DistributedDataParallel(model, broadcast_buffers=False)  # they are nobody's business


def _other_arguments() -> None:
    bps.init()
    model, first = nn.Linear(2, 2), bps.rank() == 0
    _refused(model, "rank 0 has find_unused_parameters=True, rank 1 has", find_unused_parameters=first)
    _refused(model, "rank 0 has init_sync=True, rank 1 has init_sync=False", init_sync=first)
    _refused(model, "rank 0 has broadcast_buffers=True, rank 1 has", broadcast_buffers=first)
    compression = bps.Compression.none if first else bps.Compression.fp16
    _refused(model, "rank 0 has compression='NoneCompressor', rank 1 has", compression=compression)


def _one_that_cannot() -> None:
    """What is wrong on one rank has its own error there, and tells the others."""
    bps.init()
    model = nn.Linear(2, 2)
    other, words = bps.FailedPreconditionError, "rank 1 cannot take part: "
    if bps.rank() == 1:
        model.requires_grad_(False)
    _refused(model, "no parameter that requires" if bps.rank() else words, RuntimeError if bps.rank() else other)
    model = nn.Linear(2, 2)
    if bps.rank() == 1:
        model = nn.LazyLinear(2)
    _refused(model, "weight is uninitialized", RuntimeError if bps.rank() else other)
    model = nn.Linear(2, 2)
    if bps.rank() == 1:
        model.bias.data = torch.zeros(1).expand(2)
    _refused(model, "bias: .*share memory", ValueError if bps.rank() else other)


def _some_ranks() -> None:
    """Ranks in the error are those of the job."""
    bps.init()
    ranks = bps.add_process_set([1, 2])
    if bps.rank() in (1, 2):
        with pytest.raises(bps.FailedPreconditionError, match=r"rank 1 has weight \(shape \(3,.*rank 2 has weight"):
            DistributedDataParallel(nn.Linear(2, 2 + bps.rank()), process_group=ranks)
    bps.barrier()


BODIES = [
    _other_shapes,
    _other_data_types,
    _other_numbers_of_parameters,
    _other_gradients,
    _other_buffers,
    _other_arguments,
    _one_that_cannot,
]


@pytest.mark.parametrize("body", BODIES)
def test_models_that_differ(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_some_ranks(run_workers: Callable[..., Any]) -> None:
    run_workers(_some_ranks, workers=3)


def test_alone(alone: None) -> None:
    with pytest.raises(RuntimeError, match="weight is uninitialized"):
        DistributedDataParallel(nn.LazyLinear(2))
    frozen = nn.Linear(2, 2)
    frozen.requires_grad_(False)
    with pytest.raises(RuntimeError, match="no parameter"):
        DistributedDataParallel(frozen)
