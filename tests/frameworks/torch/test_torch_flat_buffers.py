"""Trainers that keep their gradients in memory of their own: what the optimizer reduces, they see there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from torch import nn

STEPS = 4


def _model() -> nn.Module:
    """Gradients that are large enough for buffers of BytePS's own, and small ones beside them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 300), nn.Tanh(), nn.Linear(300, 3))


def _backward(model: nn.Module, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(4, 64, generator=generator) * (rank + 1)
    model(inputs).square().sum().backward()


class _Views:
    """One flat buffer; each gradient is a part of it, for good."""

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        self.flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        start = 0
        for parameter in parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def zero(self) -> None:
        self.flat.zero_()

    def read(self) -> torch.Tensor:
        return self.flat.clone()


class _BufferEach:
    """A flat buffer for each gradient, such as a storage as large as the gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.flats = []
        for parameter in model.parameters():
            self.flats.append(torch.zeros(parameter.numel()))
            parameter.grad = self.flats[-1].view_as(parameter)

    def zero(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def read(self) -> torch.Tensor:
        return torch.cat(self.flats)


class _Kept:
    """The tensors of the gradients themselves, as a program that replays its steps keeps them."""

    def __init__(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.gradients = [parameter.grad for parameter in model.parameters()]

    def zero(self) -> None:
        torch._foreach_zero_(self.gradients)

    def read(self) -> torch.Tensor:
        return torch.cat([gradient.flatten() for gradient in self.gradients])


class _Numpy:
    """Memory that NumPy has made."""

    def __init__(self, model: nn.Module) -> None:
        import numpy

        self.arrays = []
        for parameter in model.parameters():
            self.arrays.append(numpy.zeros(tuple(parameter.shape), numpy.float32))
            parameter.grad = torch.from_numpy(self.arrays[-1])

    def zero(self) -> None:
        for array in self.arrays:
            array.fill(0)

    def read(self) -> torch.Tensor:
        return torch.cat([torch.tensor(array).flatten() for array in self.arrays])


class _SharedMemory:
    """Memory that other processes see."""

    def __init__(self, model: nn.Module) -> None:
        self.gradients = []
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter).share_memory_()
            self.gradients.append(parameter.grad.detach())

    def zero(self) -> None:
        for gradient in self.gradients:
            gradient.zero_()

    def read(self) -> torch.Tensor:
        return torch.cat([gradient.flatten() for gradient in self.gradients])


TRAINERS: dict[str, Any] = {kind.__name__: kind for kind in (_Views, _BufferEach, _Kept, _Numpy, _SharedMemory)}


def _train(name: str, overlap: bool) -> list[torch.Tensor]:
    """The sums that the trainer found in its memory in each step, and the weights at the end."""
    model = _model()
    trainer = TRAINERS[name](model)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        model.named_parameters(),
        overlap_forward=model if overlap else None,
    )
    seen = []
    for step in range(STEPS):
        trainer.zero()
        _backward(model, step, bps.rank())
        optimizer.synchronize()
        seen.append(trainer.read())
        with optimizer.skip_synchronize():
            optimizer.step()
    return [*seen, *(parameter.detach().clone() for parameter in model.parameters())]


def _reference(workers: int) -> list[torch.Tensor]:
    """The same in one process, each worker's gradient computed by itself."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = []
    for step in range(STEPS):
        total: list[torch.Tensor] = []
        for rank in range(workers):
            optimizer.zero_grad()
            _backward(model, step, rank)
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            total = gradients if not total else [a + b for a, b in zip(total, gradients)]
        for parameter, gradient in zip(model.parameters(), total):
            parameter.grad = gradient / workers
        seen.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        optimizer.step()
    return [*seen, *(parameter.detach().clone() for parameter in model.parameters())]


def _the_sums_are_where_the_trainer_looks() -> None:
    bps.init()
    torch.set_num_threads(1)
    expected = _reference(bps.size())
    for name in TRAINERS:
        for overlap in (False, True):
            for number, (mine, wanted) in enumerate(zip(_train(name, overlap), expected)):
                assert torch.equal(mine, wanted), (name, overlap, number)


# What a user may keep of a gradient.
KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda gradient: gradient,
    "view": lambda gradient: gradient.view(500, 100),
    "part": lambda gradient: gradient[1:],
    "detached": lambda gradient: gradient.detach(),
    "numpy": lambda gradient: gradient.numpy(),
}


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(50_000))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.weight * factor).sum()


def _layer(overlap: bool) -> tuple[_Layer, Any]:
    layer = _Layer()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), [("p", layer.weight)], overlap_forward=layer if overlap else None
    )
    return layer, optimizer


def _step(layer: _Layer, optimizer: Any, factor: float) -> None:
    layer(factor).backward()
    optimizer.step()
    optimizer.finish_step()


def _are(values: Any, number: float) -> bool:
    return bool((values == number).all())


def _kept_from_an_earlier_step() -> None:
    """What the user has kept of earlier steps stays what it was."""
    bps.init()
    for overlap in (False, True):
        for name, keep in KEPT.items():
            layer, optimizer = _layer(overlap)
            kept: list[Any] = []
            for step in range(5):
                optimizer.zero_grad(set_to_none=True)
                _step(layer, optimizer, step + 1.0)
                kept.append(keep(layer.weight.grad))
            for step, gradient in enumerate(kept):
                assert _are(gradient, step + 1.0), (overlap, name, step, gradient)


def _kept_of_a_gradient_that_stays() -> None:
    """With zero_grad(set_to_none=False) it shows the gradient of each step, once it is kept."""
    bps.init()
    for overlap in (False, True):
        for name, keep in KEPT.items():
            layer, optimizer = _layer(overlap)
            for step in range(3):
                optimizer.zero_grad(set_to_none=False)
                _step(layer, optimizer, step + 1.0)
            kept = keep(layer.weight.grad)
            assert _are(kept, 3.0), (overlap, name, kept)
            for step in range(3, 6):
                optimizer.zero_grad(set_to_none=False)
                assert _are(kept, 0.0), (overlap, name, step, kept)
                _step(layer, optimizer, step + 1.0)
                assert _are(kept, step + 1.0) and _are(layer.weight.grad, step + 1.0), (overlap, name, step, kept)


def _addresses(set_to_none: bool) -> list[int]:
    """Where p.grad lies after each step."""
    parameter = nn.Parameter(torch.zeros(50_000))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)])
    addresses = []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=set_to_none)
        (parameter * 2).sum().backward()
        optimizer.step()
        addresses.append(parameter.grad.data_ptr())
    return addresses


def _an_ordinary_gradient_is_not_copied() -> None:
    """The fast way is still taken where only the parameter holds the gradient."""
    bps.init()
    assert bps.info().shared_buffers
    addresses = _addresses(set_to_none=False)
    assert len(set(addresses)) == 2 and addresses[0] == addresses[2] == addresses[4] != addresses[1], addresses
    assert len(set(_addresses(set_to_none=True))) == 1


class _Fused(nn.Module):
    """autograd makes the gradients of both parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Parameter(torch.randn(40, 64)), nn.Parameter(torch.randn(60, 64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ torch.cat([self.first, self.second]).t()


def _optimizer(model: nn.Module, overlap: bool, passes: int = 1) -> Any:
    return bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        model.named_parameters(),
        backward_passes_per_step=passes,
        overlap_forward=model if overlap else None,
    )


def _clipped_without_synchronize() -> None:
    """An error also where all gradients are parts of one memory; not without clipping, nor behind synchronize()."""
    bps.init()
    for overlap in (False, True):
        for make, trainer in ((_Fused, None), (_model, _Views)):
            for passes in (1, 2):
                model = make()
                kept = None if trainer is None else trainer(model)
                optimizer = _optimizer(model, overlap, passes)
                for step in range(6):
                    if kept is None:
                        optimizer.zero_grad()
                    else:
                        kept.zero()
                    for part in range(passes):
                        _backward(model, step + part, bps.rank())
                    if step in (2, 4):
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                        with pytest.raises(RuntimeError, match="was changed"):
                            optimizer.step()
                    elif step == 3:
                        optimizer.synchronize()
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                        with optimizer.skip_synchronize():
                            optimizer.step()
                    else:
                        optimizer.step()
                    optimizer.finish_step()


def _written_by_others() -> None:
    """Parts of a flat buffer that another optimizer has, or none, are written while this one's are on their way."""
    bps.init()
    model = _model()
    trainer = _Views(model)
    layers = [model[0], model[2]]  # the last has no optimizer
    optimizers = [
        bps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1e-4), layer.named_parameters(f"{number}."))
        for number, layer in enumerate(layers)
    ]
    for step in range(3):
        trainer.zero()
        _backward(model, step, bps.rank())
        for optimizer in optimizers:
            optimizer.step()


BODIES = [
    _clipped_without_synchronize,
    _written_by_others,
    _the_sums_are_where_the_trainer_looks,
    _kept_from_an_earlier_step,
    _kept_of_a_gradient_that_stays,
    _an_ordinary_gradient_is_not_copied,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
