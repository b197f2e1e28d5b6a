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


def _kept_gradients_survive_an_error() -> None:
    """Behind a reduction that the ranks disagree about, what nobody has used has what it had."""
    bps.init()
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    first, _, third = (branch.weight for branch in model.module.branches)
    third.grad = kept = torch.full((1, 1), 7.0)
    model._reducer.op = bps.Max if bps.rank() else bps.Sum
    with pytest.raises(bps.FailedPreconditionError):
        model(torch.ones(1, 1), 0).sum().backward()
    assert third.grad is kept and kept.item() == 7.0
    model._reducer.op = bps.Average
    first.grad = None
    model(torch.ones(1, 1), 0).sum().backward()
    assert first.grad.item() == 1.0 and third.grad is kept


def _forward_passes_in_between() -> None:
    """What belongs together is the forward and the backward pass of the same outputs, whatever was called since."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    weight = model.module.weight
    mean = (1 + size) / 2
    averaged = model(torch.full((1, 1), 1.0 + rank))
    if rank == 0:  # on one rank alone
        with model.no_sync():
            own = model(torch.ones(1, 1))
    averaged.sum().backward()
    assert weight.grad.item() == mean
    if rank == 0:
        own.sum().backward()
        assert weight.grad.item() == mean + 1, "not averaged"
        weight.grad = None
    weight.grad = None

    with model.no_sync():
        own = model(torch.full((1, 1), 1.0 + rank))
    averaged = model(torch.full((1, 1), 2.0))
    (averaged + own).sum().backward()
    assert weight.grad.item() == 2.0 + mean, "in one pass"
    with model.no_sync():
        model(torch.full((1, 1), 1.0 + rank)).sum().backward()
    _equal_everywhere([weight.grad - (1 + rank)])


class _Odd(nn.Module):
    """Whose state_dict() is not what there is to be shared."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone, self.head, self.own = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.register_buffer("hidden", torch.full((2,), float(seed)), persistent=False)
        self.register_buffer("mine", torch.full((2,), float(seed)))
        self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias", "mine"]

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        whole = super().state_dict(*arguments, **keywords)
        return {name: value for name, value in whole.items() if not name.startswith("backbone")}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.own(self.head(self.backbone(inputs))) + self.hidden + self.mine


def _what_is_shared() -> None:
    """Parameters and buffers, but not those that the module says are each rank's own."""
    bps.init()
    rank = bps.rank()
    model = DistributedDataParallel(_Odd(seed=1 + rank))
    module = model.module
    _equal_everywhere([*module.backbone.parameters(), *module.head.parameters(), module.hidden])
    assert module.hidden.tolist() == [1.0] * 2 and module.mine.tolist() == [1.0 + rank] * 2
    assert torch.equal(module.own.weight, _Odd(seed=1 + rank).own.weight)
    model(torch.full((1, 2), 1.0 + rank)).sum().backward()
    _equal_everywhere([parameter.grad for parameter in module.head.parameters()])
    weights = bps.allgather(module.own.weight.grad[None], name="own gradients")
    assert not torch.equal(weights[0], weights[1])
    model(torch.ones(1, 2))
    assert module.mine.tolist() == [1.0 + rank] * 2


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


def _when_buffers_are_shared() -> None:
    """As torch's class: at the beginning and before forward passes, with either argument."""
    bps.init()
    rank = bps.rank()
    for options, at_first, later in (
        ({"broadcast_buffers": False}, False, False),
        ({"broadcast_buffers": None}, True, True),
        ({"forward_sync_buffers": False}, True, False),
        ({"forward_sync_buffers": True}, True, True),
        ({"broadcast_buffers": False, "forward_sync_buffers": True}, True, True),
        ({"broadcast_buffers": True, "forward_sync_buffers": False}, True, False),
    ):
        model = DistributedDataParallel(_Odd(seed=1 + rank), **options)
        hidden = model.module.hidden
        assert hidden.tolist() == [1.0 if at_first else 1.0 + rank] * 2, options
        assert model.forward_sync_buffers == model.broadcast_buffers == later
        hidden.fill_(5.0 + rank)
        model(torch.ones(1, 2)).sum().backward()
        assert hidden.tolist() == [5.0 if later else 5.0 + rank] * 2, options
    # One that cannot be written is nobody's business where buffers are not shared.
    odd = nn.Linear(2, 2)
    odd.register_buffer("wide", torch.ones(1).expand(3), persistent=False)
    DistributedDataParallel(odd, broadcast_buffers=False)(torch.ones(1, 2)).sum().backward()


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
    with pytest.raises(RuntimeError, match=r"not needed.* no parameter"):  # as torch's class
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
    _kept_gradients_survive_an_error,
    _forward_passes_in_between,
    _what_is_shared,
    _buffers,
    _when_buffers_are_shared,
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
