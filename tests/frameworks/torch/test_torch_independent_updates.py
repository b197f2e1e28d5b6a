"""DistributedOptimizer(overlap_forward=model): which optimizers it takes, as a trial of them shows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import numpy as np
from byteps.torch.cross_barrier import CrossBarrier
from torch import nn


class _Clipping(torch.optim.SGD):
    """By the norm of all gradients."""

    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        return super().step(closure)


class _Noisy(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(torch.randn_like(parameter))
        return super().step(closure)


class _Holding(torch.optim.SGD):
    """Has the parameters a second time, and changes those."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        self.all = list(parameters)
        super().__init__(self.all, **options)

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.all:
                parameter.add_(1.0)


def _check_refused(make: Callable[[Any], torch.optim.Optimizer], message: str) -> None:
    """When it is made, with nothing changed."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for wrap in (
        lambda optimizer: bps.DistributedOptimizer(optimizer, overlap_forward=model),
        lambda optimizer: CrossBarrier(model, optimizer),
    ):
        optimizer = make(model.parameters())
        before = repr(vars(optimizer))
        with pytest.raises(ValueError, match=f"{message}.*Make the DistributedOptimizer without overlap_forward"):
            wrap(optimizer)
        assert repr(vars(optimizer)) == before


class _Counting(torch.optim.SGD):
    """Each kind of count changes nothing but itself."""

    def __init__(self, parameters: Any, count: Callable[[Any], None], error: bool = False) -> None:
        super().__init__(parameters, lr=0.1)
        self.steps, self.loss, self.moments = 0, [0.0], {"first": {"second": 1.0}}
        self.average, self.untouched = torch.zeros(2), np.zeros(2)
        self.meter, self.slots, self.numbers = _Meter(), _Slots(), itertools.count()
        self._count, self._error = count, error

    def step(self, closure: Any = None) -> Any:
        self._count(self)
        if self._error:
            raise NotImplementedError("not on this device")
        return super().step(closure)


class _Meter:
    def __init__(self) -> None:
        self.again, self.total = self, 0


class _Slots:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


def _count_number(optimizer: Any) -> None:
    optimizer.steps += 1


def _count_in_list(optimizer: Any) -> None:
    optimizer.loss.append(0.0)


def _count_in_dict(optimizer: Any) -> None:
    optimizer.moments["first"]["second"] *= 0.9


def _count_in_tensor(optimizer: Any) -> None:
    optimizer.average.add_(1)


def _count_in_array(optimizer: Any) -> None:
    optimizer.untouched[1] += 1


def _count_in_object(optimizer: Any) -> None:
    optimizer.meter.total += 1


def _count_in_slots(optimizer: Any) -> None:
    optimizer.slots.total += 1


def _count_by_iterator(optimizer: Any) -> None:
    next(optimizer.numbers)


def _count_new(optimizer: Any) -> None:
    optimizer.made = getattr(optimizer, "made", 0) + 1


def _keep_norm(optimizer: Any) -> None:
    optimizer.steps = optimizer.param_groups[0]["params"][0].grad.norm().item()


def _count_in_options(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["step"] = group.get("step", 0) + 1


COUNTS = [
    (_count_number, r"its attributes \(steps\)"),
    (_count_in_list, r"its attributes \(loss\)"),
    (_count_in_dict, r"its attributes \(moments\)"),
    (_count_in_tensor, r"its attributes \(average\)"),
    (_count_in_array, r"its attributes \(untouched\)"),
    (_count_in_object, r"its attributes \(meter\)"),
    (_count_in_slots, r"its attributes \(slots\)"),
    (_count_by_iterator, r"its attributes \(numbers\)"),
    (_count_new, r"its attributes \(made\)"),
    (_keep_norm, r"its attributes \(steps\)"),
    (_count_in_options, r"param_groups\[0\] \(step\)"),
]


@pytest.mark.parametrize("error", [False, True])
@pytest.mark.parametrize(("count", "what"), COUNTS)
def test_counts_of_steps_are_refused(alone: None, count: Callable[[Any], None], what: str, error: bool) -> None:
    """Also where the step itself cannot be tried (that of a GPU)."""
    _check_refused(functools.partial(_Counting, count=count, error=error), rf"_Counting\.step\(\) changes {what}")


class _FirstStep(torch.optim.SGD):
    """The first call of step() does more, or not."""

    def __init__(self, parameters: Any, factor: float) -> None:
        super().__init__(parameters, lr=0.1)
        self.begun, self.factor = False, factor

    def step(self, closure: Any = None) -> Any:
        if not self.begun:
            self.begun, self.sizes = True, [len(group["params"]) for group in self.param_groups]
            torch._foreach_mul_([p.grad for group in self.param_groups for p in group["params"]], self.factor)
        return super().step(closure)


def test_a_first_step_that_does_more_is_refused(alone: None) -> None:
    _check_refused(functools.partial(_FirstStep, factor=3.0), "_FirstStep updates a parameter by more than its own")


class _Prepared(torch.optim.SGD):
    """Makes its state when it is made, as Adagrad did, and uses it."""

    def __init__(self, parameters: Any, clip: bool) -> None:
        super().__init__(parameters, lr=0.1)
        self.steps, self.clip = 0, clip
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.ones(parameter.shape, dtype=torch.float64)

    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if self.clip:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        for parameter in parameters:
            total = self.state[parameter]["sum"]
            parameter.data.add_(parameter.grad / total.add_(parameter.grad.square()).sqrt(), alpha=-0.1)
        if not self.clip:
            self.steps += 1


def test_optimizers_that_have_state_from_the_beginning_are_tried(alone: None) -> None:
    _check_refused(functools.partial(_Prepared, clip=True), "_Prepared updates a parameter by more than its own grad")
    _check_refused(functools.partial(_Prepared, clip=False), r"_Prepared\.step\(\) changes its attributes \(steps\)")


class _Skipping(torch.optim.SGD):
    """Does nothing, or less, where a gradient is not finite."""

    def __init__(self, parameters: Any, only: Callable[[torch.Tensor], torch.Tensor], factor: float | None) -> None:
        super().__init__(parameters, lr=0.1)
        self._only, self._factor = only, factor

    def step(self, closure: Any = None) -> Any:
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if any(self._only(gradient).any() for gradient in gradients):
            if self._factor is None:
                return None
            torch._foreach_mul_(gradients, self._factor)
        return super().step(closure)


class _Stopping(torch.optim.SGD):
    """Ends at the first gradient that is not finite."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if not parameter.grad.isfinite().all():
                    return
                parameter.data.add_(parameter.grad, alpha=-group["lr"])


@pytest.mark.parametrize("factor", [None, 0.5, math.nan])
@pytest.mark.parametrize("only", [torch.isnan, torch.isinf])
def test_updates_that_depend_on_other_gradients_being_finite_are_refused(
    alone: None, only: Callable[[torch.Tensor], torch.Tensor], factor: float | None
) -> None:
    value = "nan" if only is torch.isnan else "inf"
    _check_refused(
        functools.partial(_Skipping, only=only, factor=factor),
        rf"_Skipping updates a parameter by more than .*whether other gradients are finite: one has {value}\)",
    )
    _check_refused(
        functools.partial(_Stopping, lr=0.1), "_Stopping updates a parameter by more than .*whether other gradients"
    )


@pytest.mark.parametrize(("rate", "groups"), [(0.1, False), (0.0, False), (0.1, True)])
def test_updates_that_depend_on_each_other_are_refused(alone: None, rate: float, groups: bool) -> None:
    model = nn.Linear(2, 2)
    for overlapped in (bps.DistributedOptimizer, None):
        parameters = [{"params": [parameter]} for parameter in model.parameters()] if groups else model.parameters()
        optimizer = _Clipping(parameters, lr=rate)
        with pytest.raises(ValueError, match="_Clipping updates a parameter by more than its own gradient"):
            if overlapped is None:
                CrossBarrier(model, optimizer)
            else:
                overlapped(optimizer, overlap_forward=model)


class _SkippingEach(torch.optim.SGD):
    """Leaves out parameters whose own gradients are not finite."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.isfinite().all():
                    parameter.data.add_(parameter.grad, alpha=-group["lr"])


class _StateOfItsOwn(torch.optim.SGD):
    """Keeps the state of parameters in attributes."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.moments: dict[torch.Tensor, torch.Tensor] = {}
        self.steps: dict[int, int] = {}

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.steps[id(parameter)] = self.steps.get(id(parameter), 0) + 1
                moment = self.moments.setdefault(parameter, torch.zeros_like(parameter)).add_(parameter.grad)
                parameter.data.add_(moment, alpha=-group["lr"] / self.steps[id(parameter)])


INDEPENDENT: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.1), foreach=False),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
    lambda parameters: torch.optim.NAdam(parameters),
    lambda parameters: torch.optim.RAdam(parameters),
    lambda parameters: torch.optim.Adamax(parameters),
    lambda parameters: torch.optim.RMSprop(parameters, centered=True, momentum=0.9),
    lambda parameters: torch.optim.Rprop(parameters),
    lambda parameters: torch.optim.Adagrad(parameters, lr_decay=0.1),
    lambda parameters: torch.optim.Adadelta(parameters),
    lambda parameters: torch.optim.ASGD(parameters),
    lambda parameters: _Noisy(parameters, lr=0.1),
    lambda parameters: _Holding(parameters, lr=0.1),
    lambda parameters: _FirstStep(parameters, factor=1.0),
    lambda parameters: _SkippingEach(parameters, lr=0.1),
    lambda parameters: _StateOfItsOwn(parameters, lr=0.1),
]
if hasattr(torch.optim, "Adafactor"):
    INDEPENDENT.append(lambda parameters: torch.optim.Adafactor(parameters))
if hasattr(torch.optim, "Muon"):
    INDEPENDENT.append(lambda parameters: torch.optim.Muon(p for p in parameters if p.ndim == 2))
INDEPENDENT += [
    functools.partial(getattr(torch.optim, name), foreach=foreach)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
    for foreach in (False, True)
]
if torch.__version__ >= torch.torch_version.TorchVersion("2.4"):
    INDEPENDENT += [
        functools.partial(getattr(torch.optim, name), fused=True) for name in ("SGD", "Adam", "AdamW", "Adagrad")
    ]


@pytest.mark.parametrize("number", range(len(INDEPENDENT)))
def test_the_trial_changes_nothing(alone: None, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.manual_seed() would seed these as well, and nothing would take it back.
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail(f"the GPUs are seeded with {seed}"))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    values = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = INDEPENDENT[number](model.parameters())
    state, random = len(optimizer.state), torch.random.get_rng_state()
    distributed = bps.DistributedOptimizer(optimizer, overlap_forward=model)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(one, value) for one, value in zip(model.parameters(), values))
    assert len(distributed.state) == state and all(parameter.grad is None for parameter in model.parameters())


SCHEDULES: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 4)),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 10),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedulers_and_steps_before(
    alone: None, schedule: Callable[[torch.optim.Optimizer], Any], fused: bool
) -> None:
    """An optimizer that has been in use is taken as a new one is."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=0.1, fused=fused or None)
        scheduler = schedule(optimizer)
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            with torch.profiler.profile():
                optimizer.step()
            scheduler.step()
            bps.DistributedOptimizer(optimizer, overlap_forward=model)
            CrossBarrier(model, optimizer)
