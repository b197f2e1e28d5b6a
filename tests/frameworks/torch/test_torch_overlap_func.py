"""overlap_forward: the forward pass inside of transforms of torch.func and of a trace, while parameters are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from torch import nn

Use = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(model)(x)


def _gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: model(x).square().sum())(x)


def _batch(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(model)(torch.stack([x, -x]))


def _trace(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    traced = torch.jit.trace(model, x, check_trace=False)
    traced(x)
    return traced(x)


def _gradient_of_parameters(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    gradients = torch.func.grad(loss)(dict(model.named_parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def _batch_of_rows(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda row, bias: (row * x).sum() * bias)(model[0].weight, model[2].bias)


def _batch_of_a_compiled_function(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    compiled = torch.compile(torch.func.vmap(lambda row: (row * x).sum()), backend="aot_eager")
    return compiled(model[0].weight)


def _product(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output, product = torch.func.vjp(lambda weight: (weight @ x).tanh(), model[2].weight)
    return torch.cat([output.detach(), product(x)[0].flatten()])


def _forward_product(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weight = model[0].weight
    output, product = torch.func.jvp(lambda one: (one @ x).tanh(), (weight,), (torch.ones(4, 4),))
    return torch.cat([output.detach(), product.detach()])


def _jacobian_of_parameters(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda weight: (weight @ x).tanh())(model[0].weight)


def _forward_jacobian_of_parameters(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacfwd(lambda weight: (weight @ x).tanh())(model[2].weight)


def _functionalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.functionalize(lambda weight: (weight @ x).add_(1.0))(model[0].weight)


def _linearized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output, product = torch.func.linearize(lambda weight: (weight @ x).tanh(), model[0].weight)
    return torch.cat([output.detach(), product(torch.ones(4, 4)).detach()])


def _used(use: Use, overlap: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What the use gives behind two steps, and the weights then. Rank 1's last gradients come when rank 0 is behind
    step()."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    options: dict[str, Any] = {"overlap_forward": model} if overlap else {}
    inner = torch.optim.SGD(model.parameters(), 0.1)
    name = f"{use.__name__} {overlap}"
    optimizer = bps.DistributedOptimizer(
        inner, named_parameters=[(f"{name} {key}", value) for key, value in model.named_parameters()], **options
    )
    x = torch.ones(4)
    for late in (False, overlap):  # the first step waits until the ranks know each other's gradients
        optimizer.zero_grad()
        if late and bps.rank() == 1:
            bps.barrier(name=name, timeout=60)
        model(x * (bps.rank() + 1)).square().sum().backward()
        optimizer.step()
    if overlap and bps.rank() == 0:
        bps.barrier(name=name, timeout=60)
    result = use(model, x).detach()
    if overlap:
        optimizer.finish_step()
    return result, [parameter.detach().clone() for parameter in model.parameters()]


def _check(use: Use) -> None:
    bps.init()
    (expected, weights), (result, updated) = _used(use, overlap=False), _used(use, overlap=True)
    assert torch.equal(result, expected)
    assert all(torch.equal(*pair) for pair in zip(weights, updated))


def _jacobians() -> None:
    _check(_jacobian)


def _gradients() -> None:
    _check(_gradient)


def _batches() -> None:
    _check(_batch)


def _traces() -> None:
    _check(_trace)


def _parameters_of_grad() -> None:
    _check(_gradient_of_parameters)


def _parameters_of_vmap() -> None:
    _check(_batch_of_rows)


def _parameters_of_compiled_vmap() -> None:
    _check(_batch_of_a_compiled_function)


def _parameters_of_vjp() -> None:
    _check(_product)


def _parameters_of_jvp() -> None:
    _check(_forward_product)


def _parameters_of_jacrev() -> None:
    _check(_jacobian_of_parameters)


def _parameters_of_jacfwd() -> None:
    _check(_forward_jacobian_of_parameters)


def _parameters_of_functionalize() -> None:
    _check(_functionalized)


def _parameters_of_linearize() -> None:
    _check(_linearized)


BODIES = [
    _jacobians,
    _gradients,
    _batches,
    _traces,
    _parameters_of_grad,
    _parameters_of_vmap,
    _parameters_of_compiled_vmap,
    _parameters_of_vjp,
    _parameters_of_jvp,
    _parameters_of_jacrev,
    _parameters_of_jacfwd,
    _parameters_of_functionalize,
    _parameters_of_linearize,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
