"""Gradients of gradients, and gradients that are computed in pieces: penalties, checkpoints, collectives twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from checkpointed_model import Checkpointed
from jobs import Outcomes
from torch import nn


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))


def _inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def _penalized(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """The loss of a critic: its slope at the inputs is to be 1."""
    inputs = _inputs(step, rank).requires_grad_()
    output = model(inputs).sum()
    (slopes,) = torch.autograd.grad(output, inputs, create_graph=True)
    return output + 10 * (slopes.norm(dim=1) - 1).square().mean()


def _sharp(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """A loss with the norm of its own gradient by the parameters."""
    loss = model(_inputs(step, rank)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + 0.1 * sum(gradient.square().sum() for gradient in gradients)


def _penalties() -> None:
    bps.init()
    torch.set_num_threads(1)
    for loss_of in (_penalized, _sharp):
        for overlap in (False, True):
            model, alone = _model(), _model()
            reference = torch.optim.SGD(alone.parameters(), lr=0.01)
            optimizer = bps.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.01),
                model.named_parameters(),
                overlap_forward=model if overlap else None,
            )
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, step, bps.rank()).backward()
                optimizer.step()
                reference.zero_grad()
                (sum(loss_of(alone, step, rank) for rank in range(bps.size())) / bps.size()).backward()
                reference.step()
            for ours, expected in zip(model.parameters(), alone.parameters()):
                torch.testing.assert_close(ours.detach(), expected.detach(), rtol=1e-4, atol=1e-5)


def _backward_with_create_graph() -> None:
    """The gradients are the averages; what can be differentiated again is this rank's own."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    weight = nn.Parameter(torch.full((3,), 2.0))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    factors = [1.0 + other for other in range(size)]
    with pytest.warns(UserWarning, match="create_graph"):
        (factors[rank] * weight.pow(3)).sum().backward(create_graph=True)
    optimizer.synchronize()
    assert weight.grad.tolist() == [12.0 * sum(factors) / size] * 3
    (second,) = torch.autograd.grad(weight.grad.sum(), weight)
    assert second.tolist() == [12.0 * factors[rank]] * 3, "6 * factor * weight"
    with optimizer.skip_synchronize(), torch.no_grad():
        optimizer.step()
    assert weight.tolist() == [2.0 - 12.0 * sum(factors) / size] * 3
    optimizer.zero_grad()
    assert weight.grad is None


def _trained(use_reentrant: bool | None, overlap: bool, times: int, passes: int) -> list[torch.Tensor]:
    model = Checkpointed(3, use_reentrant, times)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        backward_passes_per_step=passes,
        overlap_forward=model if overlap else None,
    )
    for step in range(4):
        optimizer.zero_grad()
        for number in range(passes):
            model(_inputs(4 * number + step, bps.rank())).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _checkpoints() -> None:
    """The same bits, whether activations are kept or computed again."""
    bps.init()
    for overlap, passes in ((False, 1), (True, 1), (False, 2)):
        expected = _trained(None, overlap, 1, passes)
        for use_reentrant in (False, True):
            found = _trained(use_reentrant, overlap, 1, passes)
            assert all(torch.equal(a, b) for a, b in zip(found, expected)), (use_reentrant, overlap, passes)
    twice = _trained(None, False, 2, 1)
    assert all(torch.equal(a, b) for a, b in zip(_trained(False, False, 2, 1), twice)), "each block in two checkpoints"


def _a_block_in_two_reentrant_checkpoints() -> None:
    bps.init()
    model = Checkpointed(3, True, times=2)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with pytest.raises(AssertionError, match=r"blocks\.\d.* computed more than.*use_reentrant"):
        model(_inputs(0, bps.rank())).sum().backward()
    optimizer.forget_gradients()
    optimizer.zero_grad()
    bps.barrier()
    model.use_reentrant = False
    model(_inputs(0, bps.rank())).sum().backward()
    optimizer.step()
    for number, parameter in enumerate(model.parameters()):
        assert torch.equal(bps.broadcast(parameter.detach(), 0, name=f"compare.{number}"), parameter), number


def _second_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the sum of squares of function(values ** 3), and the gradient of that gradient's sum."""
    values = values.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(values**3).square().sum(), values, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), values)
    return first.detach(), second


_EACH = torch.arange(1.0, 5.0, dtype=torch.float64)


def _values(rank: int) -> torch.Tensor:
    return _EACH + rank


def _of_a_mean() -> tuple[torch.Tensor, torch.Tensor]:
    """What _second_gradients() gives on this rank where the mean of all ranks' cubes reaches all of them."""
    mine = _values(bps.rank())
    cubes = sum(_values(rank) ** 3 for rank in range(bps.size())) / bps.size()
    slopes = sum(3 * _values(rank) ** 2 for rank in range(bps.size())) / bps.size()
    return 6 * cubes * mine**2, 12 * cubes * mine + 6 * slopes * mine**2


def _collectives_twice() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    mine = _values(rank)
    mean = _of_a_mean()
    own = (6 * mine**5, 30 * mine**4)
    is_root = float(rank == 0)
    # A sum is the gradient of each rank's own loss. An average is so once, and its own average divides once more.
    summed = tuple(is_root * size * each for each in own)
    averaged = (is_root * own[0], is_root * (12 + 18 / size) * mine**4)

    def of_group(outputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([output.flatten() for output in outputs])

    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        return list(tensor.split(2))

    for name, function, expected in (
        ("allgather", bps.allgather, own),
        ("grouped allgather", lambda tensor: of_group(bps.grouped_allgather(parts(tensor))), own),
        ("reducescatter", lambda tensor: bps.reducescatter(tensor, op=bps.Average), mean),
        (
            "grouped reducescatter",
            lambda tensor: of_group(bps.grouped_reducescatter(parts(tensor), op=bps.Average)),
            mean,
        ),
        ("allreduce", lambda tensor: bps.allreduce(tensor, op=bps.Average), mean),
        ("grouped allreduce", lambda tensor: of_group(bps.grouped_allreduce(parts(tensor), op=bps.Average)), mean),
        ("broadcast, averaged", lambda tensor: bps.broadcast(tensor, 0), averaged),
        ("broadcast, summed", lambda tensor: bps.broadcast(tensor, 0, gradient_op=bps.Sum), summed),
    ):
        for found, wanted in zip(_second_gradients(function, mine), expected):
            torch.testing.assert_close(found, wanted, msg=lambda text, name=name: f"{name}: {text}")


def _a_gradient_that_is_not_finite() -> None:
    """It stays the root's."""
    bps.init()
    tensor = torch.zeros(2, requires_grad=True)
    (bps.broadcast(tensor, 0) * float("inf")).sum().backward()
    assert tensor.grad.tolist() == [float("inf") if bps.rank() == 0 else 0.0] * 2


BODIES = [
    _penalties,
    _backward_with_create_graph,
    _checkpoints,
    _a_block_in_two_reentrant_checkpoints,
    _collectives_twice,
    _a_gradient_that_is_not_finite,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


@pytest.mark.parametrize(
    "function",
    [
        bps.allgather,
        bps.reducescatter,
        lambda tensor: bps.broadcast(tensor, 0),
        lambda tensor: tuple(bps.grouped_allreduce([tensor, 2 * tensor])),
        lambda tensor: tuple(bps.grouped_allgather([tensor, 2 * tensor])),
        lambda tensor: tuple(bps.grouped_reducescatter([tensor, 2 * tensor])),
    ],
    ids=["allgather", "reducescatter", "broadcast", "allreduces", "allgathers", "reducescatters"],
)
def test_gradients_of_gradients(alone: None, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda values: function(values**3), tensor)
