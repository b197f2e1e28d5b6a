"""Communication beside the computation, as the timeline (docs/timeline.md) shows it. The order of events is forced by
what waits for what, so no machine is too slow or too fast for these tests: without the overlap nothing comes to its
end, and a deadline fails them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import JobResult
from timelines import DEADLINE, Timeline, path_of, read_whole, wait_for, wait_until_home
from torch import nn

RunWorkers = Callable[..., JobResult]

LAYERS = 4
WIDTH = 64
STEPS = 3
WEIGHTS = [f"Gradient.{layer}.weight" for layer in range(LAYERS)]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def _optimizer(model: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    return bps.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def _backward_that_waits(path: str) -> None:
    """Before the gradient of the first layer is computed, those of the others come home."""
    bps.init()
    model = _model()
    optimizer = _optimizer(model)
    for step in range(STEPS):

        def others_are_home(gradient: torch.Tensor, step: int = step) -> None:
            for weight in WEIGHTS[1:]:
                wait_until_home(path_of(path, bps.rank()), weight, step)
            bps.timeline_mark("first layer's backward")

        optimizer.zero_grad()
        hidden = model[0](torch.ones(2, WIDTH))
        hidden.register_hook(others_are_home)
        loss = model[1:](hidden).square().sum()
        with bps.timeline_span("backward"):
            loss.backward()
        optimizer.step()
    bps.shutdown()


@pytest.mark.parametrize("servers", [0, 1])
def test_gradients_come_home_during_the_backward_pass(run_workers: RunWorkers, tmp_path: Path, servers: int) -> None:
    path = tmp_path / "t.json"
    run_workers(_backward_that_waits, str(path), servers=servers, BYTEPS_TIMELINE=str(path))
    for rank in (0, 1):
        timeline = read_whole(path_of(path, rank))
        for step in range(STEPS):
            backward = timeline.spans["backward"][step]
            first = timeline.moments["first layer's backward"][step]
            operations = [timeline.operation("push_pull", weight, step) for weight in WEIGHTS]
            assert [operation.args["outcome"] for operation in operations] == ["OK"] * LAYERS
            # As they are computed: from the last layer to the first.
            begins = [operation.begin for operation in operations]
            assert begins == sorted(begins, reverse=True)
            for operation in operations[1:]:
                assert backward.begin <= operation.begin <= operation.end <= first <= backward.end
            assert first <= operations[0].begin <= backward.end


def _forward_that_goes_ahead(path: str, folder: str) -> None:
    """Rank 1 hands in the gradient of the first layer alone, and all others when rank 0 has computed the first layer of
    the next step."""
    bps.init()
    model = _model()
    optimizer = _optimizer(model, overlap_forward=model)
    ahead = False  # whether the gradients of the step before may be on their way

    def computed(*_: Any) -> None:
        bps.timeline_mark("first layer's forward")
        if ahead and bps.rank() == 0:
            (Path(folder) / f"ahead{step}").touch()

    model[0].register_forward_hook(computed)
    for step in range(STEPS):
        optimizer.zero_grad()
        with bps.timeline_span("forward"):
            loss = model(torch.ones(2, WIDTH)).square().sum()
        ahead = step > 0  # (the first step waits: optimizers make their state in it)
        if bps.rank() == 1 and ahead and step + 1 < STEPS:
            first, *others = model.parameters()
            loss.backward(inputs=[first], retain_graph=True)
            wait_for((Path(folder) / f"ahead{step + 1}").exists, f"rank 0 was not ahead after step {step}")
            loss.backward(inputs=others)
        else:
            loss.backward()
        optimizer.step()
    bps.shutdown()


def test_gradients_come_home_beneath_the_next_forward_pass(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    environment = {"BYTEPS_TIMELINE": str(path), "BYTEPS_OP_TIMEOUT": str(int(2 * DEADLINE))}
    run_workers(_forward_that_goes_ahead, str(path), str(tmp_path), **environment)
    timeline: Timeline = read_whole(path)
    for step in range(1, STEPS - 1):
        ahead = timeline.moments["first layer's forward"][step + 1]
        forward = timeline.spans["forward"][step + 1]
        first, *others = (timeline.operation("push_pull", weight, step) for weight in WEIGHTS)
        assert first.end <= ahead
        for operation in others:
            assert operation.begin <= forward.begin <= ahead <= operation.end <= forward.end
