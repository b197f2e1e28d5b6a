"""DistributedOptimizer in one process: its class, its options, and what is refused.

The behaviour of hooks is tested with one worker that goes through the servers all the same, in a job.
"""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from torch import nn


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def test_it_is_an_optimizer_of_its_own_class(alone: None) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    distributed = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert isinstance(distributed, torch.optim.Adam)
    assert type(distributed).__name__ == "Adam"
    assert distributed.param_groups is optimizer.param_groups
    assert distributed.defaults["lr"] == 0.25


def test_one_worker_trains_as_without(alone: None) -> None:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    weights = []
    for wrap in (False, True):
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if wrap:
            optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            scheduler.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights))


def test_a_scheduler_made_before(alone: None) -> None:
    """It has wrapped `step` of the optimizer that it was given, and changes the learning rate of both."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    distributed = bps.DistributedOptimizer(optimizer)
    model(torch.ones(1, 4)).sum().backward()
    distributed.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):  # it is our step() that runs, not the wrapped one
        distributed.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it did not see the step
        scheduler.step()
    assert distributed.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (lambda model: list(model.parameters()), "sequence of .* entry 0 is a Parameter"),
        (lambda model: [*model.named_parameters(), ("a", "b", "c")], "sequence of .* entry 4 is a tuple of 3"),
        (
            lambda model: [(1, parameter) for parameter in model.parameters()],
            "string and a tensor .* entry 0 has a int and a Parameter",
        ),
        (lambda model: [*model.named_parameters(), ("a", "b")], "string and a tensor .* entry 4 has a str and a str"),
        (lambda model: [("same", parameter) for parameter in model.parameters()], "names twice: same"),
        (
            lambda model: [pair for pair in model.named_parameters() if pair[0] != "2.weight"],
            r"lacks 1 of the optimizer's 4 parameters, .* parameter 0 of param_groups\[1\], of shape \(2, 3\)",
        ),
        (lambda model: [], r"lacks 4 .* parameter 0 of param_groups\[0\], of shape \(3, 4\)"),
    ],
)
def test_wrong_named_parameters(alone: None, named: Callable[[nn.Module], object], message: str) -> None:
    model = _model()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    with pytest.raises(ValueError, match=message):
        bps.DistributedOptimizer(torch.optim.SGD(groups, lr=1), named_parameters=named(model))


class _Own(torch.optim.SGD):
    """Takes no arguments, where PyTorch's classes take one."""

    calls = 0

    def zero_grad(self) -> str:
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.zero_()
        return "zeros"

    def step(self) -> None:
        super().step()


class _OwnDefault(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)


class _PassesOn(torch.optim.SGD):
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        super().zero_grad(*args, **kwargs)


def test_zero_grad_and_step_of_a_class_of_the_user(alone: None) -> None:
    model = _model()
    optimizer = bps.DistributedOptimizer(_Own(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.ones(1, 4)).sum().backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert optimizer.zero_grad() == "zeros" and optimizer.calls == 1
    assert all(not parameter.grad.any() for parameter in model.parameters())
    with pytest.raises(TypeError):
        optimizer.zero_grad(True)

    optimizer = bps.DistributedOptimizer(_OwnDefault(model.parameters(), lr=0.1), model.named_parameters())
    optimizer.zero_grad()
    assert all(not parameter.grad.any() for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())


def _zeroed_beneath_a_step() -> list[str]:
    """Calls zero_grad() while parameters are still to be updated. Returns the classes that do not do what they do in
    one process."""
    bps.init()
    wrong = []
    for kind in (torch.optim.SGD, _OwnDefault, _PassesOn, _Own):
        model, twin = _model(), _model()
        optimizer = bps.DistributedOptimizer(
            kind(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=model
        )
        own = kind(twin.parameters(), lr=0.1)
        try:
            for step in range(4):
                for one, net in ((optimizer, model), (own, twin)):
                    net(torch.full((2, 4), float(step))).sum().backward()
                    one.step()
                    one.zero_grad()
            optimizer.finish_step()
            for mine, wanted in zip(model.parameters(), twin.parameters()):
                assert torch.equal(mine, wanted)
                assert mine.grad is wanted.grad is None or torch.equal(mine.grad, wanted.grad)
        except Exception as error:
            wrong.append(f"{kind.__name__}: {error!r}")
    bps.shutdown()
    return wrong


def test_zero_grad_beneath_an_overlapped_step(run_workers: Callable[..., Any]) -> None:
    for wrong in run_workers(_zeroed_beneath_a_step, BYTEPS_OP_TIMEOUT="60").results:
        assert wrong == []


@pytest.mark.parametrize("passes", [0, -1, 1.5, None])
def test_wrong_backward_passes(alone: None, passes: object) -> None:
    optimizer = torch.optim.SGD(_model().parameters(), lr=1)
    with pytest.raises(ValueError, match="positive integer"):
        bps.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    with pytest.raises(ValueError, match="positive integer"):
        bps.DistributedOptimizer(optimizer).set_backward_passes_per_step(passes)


def test_wrong_op(alone: None) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        bps.DistributedOptimizer(torch.optim.SGD(_model().parameters(), lr=1), op="mean")


def test_pickling(alone: None, tmp_path: Path) -> None:
    """What belongs to this process says so; its state goes anywhere."""
    model = _model()
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5), model.named_parameters())
    for act in (pickle.dumps, copy.deepcopy, copy.copy, lambda one: torch.save(one, tmp_path / "whole")):
        with pytest.raises(TypeError, match=r"DistributedOptimizer cannot be pickled.*state_dict\(\)"):
            act(optimizer)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state")
    other = _model()
    again = bps.DistributedOptimizer(torch.optim.Adam(other.parameters(), lr=0.1), other.named_parameters())
    again.load_state_dict(torch.load(tmp_path / "state"))
    assert again.param_groups[0]["lr"] == 0.5
    assert torch.equal(again.state[other[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    for handle in (
        bps.push_pull_async(torch.ones(3), name="kept"),
        bps.allgather_async(torch.ones(3), name="gathered"),
        bps.grouped_allreduce_async([torch.ones(3)], name="group"),
        bps.sparse_allreduce_async(torch.ones(3).to_sparse(1), name="sparse", op=bps.Sum),
    ):
        for act in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot be pickled or copied.*synchronize\(\) it"):
                act(handle)
        bps.synchronize(handle)


def test_it_does_not_outlive_its_last_user(alone: None) -> None:
    model = _model()
    distributed = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1))
    alive = weakref.ref(distributed)
    del distributed
    gc.collect()
    assert alive() is None
    model(torch.ones(1, 4)).sum().backward()
