"""byteps.torch.parallel.DistributedDataParallel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel
from checkpointed_model import Checkpointed
from jobs import Outcomes
from torch import nn

RunWorkers = Callable[..., Any]


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 100), nn.BatchNorm1d(100), nn.Tanh(), nn.Linear(100, 200), nn.Linear(200, 2))


def _values(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def _inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def _equal_everywhere(tensors: list[torch.Tensor]) -> None:
    """On all ranks, to the bit."""
    for number, tensor in enumerate(tensors):
        of_root = bps.broadcast(tensor, 0, name=f"compare.{number}")
        assert torch.equal(of_root, tensor), number


def _begins_with_rank_0() -> None:
    bps.init()
    model = DistributedDataParallel(_model(seed=bps.rank()))
    assert all(torch.equal(a, b) for a, b in zip(_values(model), _values(_model(0))))
    assert list(model.state_dict()) == ["module." + name for name in model.module.state_dict()]
    other = DistributedDataParallel(_model(seed=bps.rank()), init_sync=False)
    assert torch.equal(other.module[0].weight, _model(bps.rank())[0].weight)


def _averages_when_backward_returns() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    torch.set_num_threads(1)
    model = DistributedDataParallel(_model(0))
    alone = [_model(0) for _ in range(size)]
    for step in range(3):
        model.zero_grad(set_to_none=step % 2 == 0)
        model(_inputs(step, rank)).square().sum().backward()
        for other, one in enumerate(alone):
            one.zero_grad()
            one(_inputs(step, other)).square().sum().backward()
        for gradients in zip(model.parameters(), *[one.parameters() for one in alone]):
            mean = sum(parameter.grad for parameter in gradients[1:]) / size
            assert torch.equal(gradients[0].grad, mean), step
    model.synchronize()


def _accumulates() -> None:
    bps.init()
    rank = bps.rank()
    parameter = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(parameter)
    weight = parameter.weight
    with model.no_sync():
        model(torch.full((1, 1), 1.0 + rank)).sum().backward()
        assert weight.grad.item() == 1.0 + rank, "each its own"
        model(torch.full((1, 1), 1.0 + rank)).sum().backward()
    model(torch.full((1, 1), 10.0)).sum().backward()
    assert weight.grad.item() == 13.0, "the mean of 2 * (1 + rank) + 10"
    model(torch.full((1, 1), 2.0 * rank)).sum().backward()
    assert weight.grad.item() == 14.0, "on top of the average"


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(3)])

    def forward(self, inputs: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which](inputs)


def _unused_parameters() -> None:
    bps.init()
    rank = bps.rank()
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    first, second, third = (branch.weight for branch in model.module.branches)
    model(torch.ones(1, 1), rank).sum().backward()
    assert (first.grad.item(), second.grad.item()) == (0.5, 0.5)
    assert third.grad is None, "used by nobody"
    third.grad = torch.full((1, 1), 7.0)
    kept = third.grad
    model(torch.ones(1, 1), 0).sum().backward()
    assert first.grad.item() == 1.5 and third.grad is kept and kept.item() == 7.0

    with model.no_sync():
        model(torch.ones(1, 1), 1 + rank).sum().backward()
    first.grad = None
    model(torch.ones(1, 1), 0).sum().backward()
    # The second has 0.5 on all ranks from the first pass, and the third 7.0; each rank has added 1.0 to one of them.
    gradients = [weight.grad.item() for weight in (first, second, third)]
    assert gradients == [1.0, 1.0, 7.5], "used inside no_sync(), so averaged, although not in the last pass"
    model(torch.ones(1, 1), 0).sum().backward()
    assert second.grad.item() == 1.0 and third.grad.item() == 7.5, "used by nobody since"

    model = DistributedDataParallel(_Branches())
    first, second, third = (branch.weight for branch in model.module.branches)
    model(torch.ones(1, 1), rank).sum().backward()
    assert [weight.grad.item() for weight in (first, second, third)] == [0.5, 0.5, 0.0]


def _buffers() -> None:
    bps.init()
    rank = bps.rank()
    for positional in (False, True):
        # BytePS's third argument.
        model = DistributedDataParallel(_model(0), None, positional)
        for step in range(2):
            model(_inputs(step, rank)).sum().backward()
        model(_inputs(9, 0)).sum().backward()
        means = model.module[1].running_mean
        assert torch.equal(bps.broadcast(means, 0), means) == (positional or rank == 0)
    model.eval()
    with torch.no_grad():
        model(_inputs(0, rank))


def _options() -> None:
    bps.init()
    half = DistributedDataParallel(nn.Linear(3, 3), None, True, bps.Compression.fp16)
    half(torch.full((1, 3), 1 / 3)).sum().backward()
    assert torch.equal(half.module.weight.grad, torch.full((3, 3), 1 / 3).half().float())
    for options in (
        {"bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True, "check_reduction": True},
        {"process_group": bps.global_process_set, "device_ids": ["cpu"], "output_device": "cpu"},
    ):
        DistributedDataParallel(nn.Linear(2, 2), **options)(torch.ones(1, 2)).sum().backward()
    other = bps.add_process_set([1 - bps.rank()])
    for options, error, words in (
        ({"device_ids": [0, 1]}, ValueError, "one device"),
        ({"dim": 1}, NotImplementedError, "dim"),
        ({"process_group": bps.ProcessSet([0])}, ValueError, "does not know"),
        ({"process_group": other}, ValueError, "not part of"),
        ({"process_group": object()}, TypeError, "process_group"),
        ({"delay_all_reduce_named_params": [1]}, NotImplementedError, "delay_all_reduce"),
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"compression": 3}, TypeError, "Compression"),
    ):
        with pytest.raises(error, match=words):
            DistributedDataParallel(nn.Linear(2, 2), **options)
    with pytest.raises(TypeError, match="module is a"):
        DistributedDataParallel(3)
    frozen = nn.Linear(2, 2)
    frozen.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter"):
        DistributedDataParallel(frozen)
    with pytest.raises(TypeError, match=r"\.module"):
        copy.deepcopy(half)


def _two_models_and_frozen_parameters() -> None:
    bps.init()
    rank = bps.rank()
    one, two = DistributedDataParallel(_model(0)), DistributedDataParallel(_model(1))
    one.module[0].weight.requires_grad_(False)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (one, two)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (two(_inputs(step, rank)).sum() + one(_inputs(step, rank)).sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
    _equal_everywhere([parameter.detach() for model in (one, two) for parameter in model.parameters()])
    assert torch.equal(one.module[0].weight, _model(0)[0].weight)


class _Checkpointed(Checkpointed):
    """Its output is a dict, in which the wrapper finds the tensors."""

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": super().forward(inputs)}


def _checkpointed() -> None:
    """With use_reentrant=True backward passes run inside the backward pass. It ends once, behind them."""
    bps.init()
    inputs = [torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + bps.rank())) for step in range(3)]
    for find_unused in (False, True):
        found = []
        for use_reentrant in (None, False, True):
            model = DistributedDataParallel(_Checkpointed(4, use_reentrant), find_unused_parameters=find_unused)
            ends = 0
            finish = model._reducer.finish

            def counted(finish: Callable[[], None] = finish) -> None:
                nonlocal ends
                ends += 1
                finish()

            model._reducer.finish = counted
            gradients = []
            for each in inputs:
                model.zero_grad()
                model(each)["hidden"].square().sum().backward()
                gradients += [parameter.grad.clone() for parameter in model.parameters()]
            assert ends == len(inputs), (use_reentrant, ends)
            found.append(gradients)
        _equal_everywhere(found[0])
        for gradients in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], gradients))


def _checkpointed_twice() -> None:
    """A parameter that two checkpoints use: use_reentrant=True gives it two gradients."""
    bps.init()
    model = DistributedDataParallel(_Checkpointed(4, False, times=2))
    model(torch.ones(1, 4))["hidden"].sum().backward()
    model = DistributedDataParallel(_Checkpointed(4, True, times=2))
    with pytest.raises(AssertionError, match=r"blocks\.\d.* computed more than.*use_reentrant"):
        model(torch.ones(1, 4))["hidden"].sum().backward()
    model._reducer.abandon()  # as the next forward pass does, of all ranks by the barrier
    bps.barrier()
    model.module.use_reentrant = False
    model.zero_grad()
    model(torch.full((1, 4), float(bps.rank())))["hidden"].sum().backward()
    _equal_everywhere([parameter.grad for parameter in model.parameters()])


def _a_gradient_penalty() -> None:
    """autograd.grad() through the wrapper is this rank's own; it ends no backward pass."""
    bps.init()
    model = DistributedDataParallel(_model(0))
    model.eval()
    inputs = _inputs(0, bps.rank()).requires_grad_()
    output = model(inputs).sum()
    (slopes,) = torch.autograd.grad(output, inputs, create_graph=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    (output + (slopes.norm() - 1).square()).backward()
    means = []
    for rank in range(bps.size()):
        one = _model(0)
        one.eval()
        each = _inputs(0, rank).requires_grad_()
        output = one(each).sum()
        (slopes,) = torch.autograd.grad(output, each, create_graph=True)
        (output + (slopes.norm() - 1).square()).backward()
        means.append([parameter.grad for parameter in one.parameters()])
    for parameter, expected in zip(model.parameters(), zip(*means)):
        torch.testing.assert_close(parameter.grad, sum(expected) / bps.size())


def _an_error_in_the_backward_pass() -> None:
    bps.init()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    hook = model.module[0].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 2)).sum().backward()
    hook.remove()
    model.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    _equal_everywhere([parameter.grad for parameter in model.parameters()])


BODIES = [
    _begins_with_rank_0,
    _averages_when_backward_returns,
    _accumulates,
    _unused_parameters,
    _buffers,
    _options,
    _two_models_and_frozen_parameters,
    _checkpointed,
    _checkpointed_twice,
    _a_gradient_penalty,
    _an_error_in_the_backward_pass,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_alone(alone: None) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    model.synchronize()
    assert model.module.weight.grad[0, 0].item() == 2.0
