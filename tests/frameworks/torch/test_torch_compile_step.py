"""torch.compile of a whole training step: what is sent, and what comes of it, is as without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel
from jobs import Outcomes
from process_group import end
from torch import nn

STEPS = 5

# Makes of a model what a step calls, and its optimizer.
Prepare = Callable[[nn.Module], tuple[nn.Module, Any]]


class _Net(nn.Module):
    """With a buffer, which DistributedDataParallel sends before each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)  # its gradient would be rounding alone: the norm takes it out
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(inputs))))


def _optimizer(model: nn.Module, **options: Any) -> Any:
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return bps.DistributedOptimizer(inner, model.named_parameters(), **options)


def _plain(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, _optimizer(model)


def _adam(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())


def _halves(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, _optimizer(model, compression=bps.Compression.fp16, groups=2)


def _overlapped(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, _optimizer(model, overlap_forward=model)


def _wrapped(model: nn.Module) -> tuple[nn.Module, Any]:
    return DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _wrapped_unused(model: nn.Module) -> tuple[nn.Module, Any]:
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _adasum(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, _optimizer(model, op=bps.Adasum)


def _zeroing(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def _train(prepare: Prepare, compiled: bool) -> list[torch.Tensor]:
    """The losses of the steps, then the parameters and buffers behind the last. Rank 1 begins each step when rank 0 is
    behind it, unless rank 0 waits for its gradients: those are on their way then when rank 0's next step begins."""
    torch.manual_seed(5)
    torch._dynamo.reset()
    model = _Net()
    run, optimizer = prepare(model)
    bps.broadcast_parameters(model.state_dict(), prefix=f"{prepare.__name__}.{compiled}.")

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if compiled:
        # Traced, functionalized and differentiated ahead of time, as for inductor, without waiting for a C++ compiler.
        step = torch.compile(step, backend="aot_eager")
    generator = torch.Generator().manual_seed(bps.rank())
    losses = []
    for number in range(STEPS):
        late = prepare is _overlapped and number > 0
        if late and bps.rank() == 1:
            bps.barrier(name="late", timeout=300)
        inputs = torch.randn(8, 6, generator=generator)
        targets = torch.randint(0, 3, (8,), generator=generator)
        losses.append(step(inputs, targets).clone())
        if late and bps.rank() == 0:
            assert any(type(parameter) is not nn.Parameter for parameter in model.parameters()), "none is held"
            bps.barrier(name="late", timeout=300)
    if hasattr(optimizer, "finish_step"):
        optimizer.finish_step()
    return [*losses, *(value.detach().clone() for value in model.state_dict().values())]


def _compare(prepare: Prepare) -> None:
    bps.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo's own
        expected = _train(prepare, compiled=False)
        ours = _train(prepare, compiled=True)
    assert len(ours) == len(expected)
    for index, (one, other) in enumerate(zip(ours, expected)):
        torch.testing.assert_close(one, other, msg=lambda text, index=index: f"{index}: {text}")
    for index, weights in enumerate(ours[STEPS : STEPS + 2]):
        of_root = bps.broadcast(weights, 0, name=f"{prepare.__name__}.compare.{index}")
        assert torch.equal(of_root, weights), "the ranks have parted"
    assert not torch.equal(expected[0], expected[STEPS - 1])


def _of_an_optimizer() -> None:
    _compare(_plain)


def _of_adam() -> None:
    _compare(_adam)


def _of_groups_in_half_precision() -> None:
    _compare(_halves)


def _of_an_overlapped_optimizer() -> None:
    _compare(_overlapped)


def _of_adasum() -> None:
    _compare(_adasum)


def _of_a_cross_barrier() -> None:
    _compare(_zeroing)


def _of_a_wrapped_model() -> None:
    _compare(_wrapped)


def _of_a_wrapped_model_with_unused_parameters() -> None:
    _compare(_wrapped_unused)


def _torchs(model: nn.Module, hook: bool) -> tuple[nn.Module, Any]:
    wrapped = nn.parallel.DistributedDataParallel(model)
    if hook:
        wrapped.register_comm_hook(None, bps.comm_hook)
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _over_the_backend(model: nn.Module) -> tuple[nn.Module, Any]:
    return _torchs(model, hook=False)


def _with_the_hook(model: nn.Module) -> tuple[nn.Module, Any]:
    return _torchs(model, hook=True)


def _of_torchs_wrapper() -> None:
    """Over the backend, with the hook, and with the hook over Gloo."""
    end()
    dist.init_process_group("byteps", init_method="byteps://")
    _compare(_over_the_backend)
    _compare(_with_the_hook)
    end()
    dist.init_process_group("gloo", init_method="byteps://")
    _compare(_with_the_hook)
    end()


def _behind_an_error() -> None:
    """What a compiled step has left on its way that ended in the middle of the backward pass, the next one gives up."""
    bps.init()
    torch.manual_seed(5)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    wrapped = DistributedDataParallel(model)

    def step(inputs: torch.Tensor) -> None:
        wrapped.zero_grad()
        wrapped(inputs).square().sum().backward()

    compiled = torch.compile(step, backend="aot_eager")
    inputs = torch.full((2, 6), 1.0 + bps.rank())
    compiled(inputs)
    means = [parameter.grad.clone() for parameter in model.parameters()]
    hook = model[0].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compiled(inputs)
    hook.remove()
    compiled(inputs)
    assert all(torch.equal(parameter.grad, mean) for parameter, mean in zip(model.parameters(), means))


def _a_wrapped_model_is_whole() -> None:
    """A wrapped model without buffers is one graph."""
    bps.init()
    torch.manual_seed(5)
    torch._dynamo.reset()
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)))
    compiled = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        wrapped.zero_grad()
        compiled(torch.full((2, 6), 1.0 + bps.rank())).square().sum().backward()
    weights = wrapped.module[0].weight.grad
    assert weights.abs().sum() > 0
    assert torch.equal(bps.broadcast(weights, 0, name="whole"), weights)


BODIES = [
    _of_an_optimizer,
    _of_adam,
    _of_groups_in_half_precision,
    _of_an_overlapped_optimizer,
    _of_adasum,
    _of_a_cross_barrier,
    _of_torchs_wrapper,
    _of_a_wrapped_model,
    _of_a_wrapped_model_with_unused_parameters,
    _behind_an_error,
    _a_wrapped_model_is_whole,
]


@pytest.mark.parametrize("body", BODIES)
def test_compiled_step(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
