"""What the forward pass needs first is the most urgent, whatever the order of declaration."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.forward_order import ForwardOrder
from torch import nn
from torch.nn.modules import module as modules

RunWorkers = Callable[..., Any]


class _Backwards(nn.Module):
    """Declares its layers in the reverse of the order in which it uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.middle = nn.Linear(4, 4)
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(inputs))) * self.scale


def _names(model: nn.Module, order: ForwardOrder) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in order.close()]


def test_use_counts_and_not_declaration() -> None:
    model = _Backwards()
    order = ForwardOrder(model.parameters())
    assert not order.seen
    with torch.no_grad():
        model(torch.ones(1, 3))
        model(torch.ones(1, 3))
    assert order.seen
    assert _names(model, order) == [
        "scale",  # the outermost module is called first
        *("first.weight", "first.bias", "middle.weight", "middle.bias", "last.weight", "last.bias"),
    ]


def test_a_module_that_reaches_into_its_children() -> None:
    """Attention never calls its output projection, but uses its weight."""
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4))
    order = ForwardOrder(reversed(list(model.parameters())))
    inputs = torch.ones(1, 3, 4)
    model[1](model[0](inputs, inputs, inputs)[0])
    assert _names(model, order)[-2:] == ["1.bias", "1.weight"]


class _Unused(nn.Module):
    """Has a large module that it does not call, layers in a list, and a parameter of its own that it uses last."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.ones(2, 2))
        self.unused = nn.Linear(50, 50)
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])
        self.shift = nn.Parameter(torch.ones(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs + self.shift
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden @ self.projection


_UNUSED_IN_ORDER = [
    *("shift", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"),
    *("projection", "unused.weight", "unused.bias"),
]


def test_the_backward_pass_tells_where_calls_leave_it_open() -> None:
    model = nn.Sequential(_Unused())
    order = ForwardOrder(model.parameters())
    hooks = [p.register_post_accumulate_grad_hook(order.gradient_ready) for p in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    assert [name.removeprefix("0.") for name in _names(model, order)] == _UNUSED_IN_ORDER
    assert len(hooks) == 8


def test_attention_in_a_model_that_learns() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4))
    order = ForwardOrder(reversed(list(model.parameters())))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(order.gradient_ready)
    inputs = torch.ones(1, 3, 4)
    model[1](model[0](inputs, inputs, inputs)[0]).sum().backward()
    names = _names(model, order)
    assert {*names[:2]} == {"0.in_proj_weight", "0.in_proj_bias"}
    assert {*names[2:4]} == {"0.out_proj.weight", "0.out_proj.bias"}


def test_without_modules_the_backward_pass_tells() -> None:
    first, second, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
    order = ForwardOrder([second, unused, first])
    order.gradient_ready(second)
    order.gradient_ready(first)
    order.gradient_ready(second)
    assert [id(p) for p in order.close()] == [id(first), id(second), id(unused)]


def test_a_compiled_model() -> None:
    model = _Backwards()
    order = ForwardOrder(model.parameters())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1, 3)).shape == (1, 2)
    assert len(order.close()) == 7


def test_the_hook_goes() -> None:
    before = len(modules._global_forward_pre_hooks)
    order = ForwardOrder(_Backwards().parameters())
    assert len(modules._global_forward_pre_hooks) == before + 1
    order.close()
    assert len(modules._global_forward_pre_hooks) == before


def _priorities(declared_backwards: bool) -> tuple[list[list[tuple[str, int]]], list[torch.Tensor], int]:
    """What goes with which priority in each of three steps, and the weights at the end."""
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _Backwards()
    named = list(model.named_parameters())
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    # Ranks may differ in what they declare first.
    optimizer = bps.DistributedOptimizer(optimizer, named[::-1] if declared_backwards and bps.rank() == 1 else named)
    sent: list[tuple[str, int]] = []
    reducer = optimizer._reducer
    steps = []
    for step in range(3):
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * step + bps.rank()))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        sent.extend((reducer.names[item.parameter], item.priority) for item in reducer.in_flight.values())
        optimizer.step()
        steps.append(sorted(sent, key=lambda pair: -pair[1]))
        sent.clear()
    hooks = len(modules._global_forward_pre_hooks)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    del optimizer
    gc.collect()
    return steps, weights, hooks


_IN_USE = ["first.weight", "first.bias", "middle.weight", "middle.bias", "last.weight", "last.bias", "scale"]
_DECLARED = ["scale", "last.weight", "last.bias", "middle.weight", "middle.bias", "first.weight", "first.bias"]


@pytest.mark.parametrize("declared_backwards", [False, True])
def test_the_second_iteration_goes_by_the_first(run_workers: RunWorkers, declared_backwards: bool) -> None:
    results = run_workers(_priorities, declared_backwards, workers=2).results
    for rank, (steps, _, hooks) in enumerate(results):
        names = [[name.removeprefix("Gradient.") for name, _ in step] for step in steps]
        declared = _DECLARED[::-1] if declared_backwards and rank == 1 else _DECLARED
        assert names[0] == declared
        assert names[1] == names[2] == _IN_USE or (declared_backwards and rank == 1)
        assert [name for name in names[2] if name.endswith("weight")] == [n for n in _IN_USE if n.endswith("weight")]
        assert hooks == 0
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1]))


def _unfrozen() -> list[list[str]]:
    """The order of urgency after each of six steps of a model whose layers join the training one after the other."""
    bps.init()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    names = {parameter: name for name, parameter in model.named_parameters()}
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([*model[2].parameters(), *model[0].parameters()], lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer)
    orders, watched = [], []
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": list(model[1].parameters())})
        if step == 4:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        model(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()
        priorities = optimizer._reducer.priorities
        orders.append([names[parameter] for parameter in sorted(priorities, key=lambda p: -priorities[p])])
        watched.append(len(modules._global_forward_pre_hooks))
    assert watched == [0, 0, 0, 0, 1, 0]  # an unfrozen layer is noticed at the end of its first step
    return orders


def test_parameters_that_join_later_find_their_place(run_workers: RunWorkers) -> None:
    layers = [[f"{layer}.{kind}" for kind in ("weight", "bias")] for layer in range(3)]
    for orders in run_workers(_unfrozen, workers=2).results:
        assert orders[1] == [*layers[0], *layers[2]]
        assert orders[2] == orders[5] == [*layers[0], *layers[1], *layers[2]]
