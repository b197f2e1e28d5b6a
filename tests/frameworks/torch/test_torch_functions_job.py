"""broadcast_parameters, broadcast_optimizer_state and broadcast_object over several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.fresh_state import make_fresh_state
from jobs import Outcomes
from torch import nn

RunWorkers = Callable[..., Any]


def _parameters() -> None:
    bps.init()
    rank = bps.rank()

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))
        made[1].num_batches_tracked += seed  # an integer of no dimensions
        return made

    for root in range(bps.size()):
        mine = model(seed=rank)
        bps.broadcast_parameters(mine.state_dict(), root_rank=root)
        for (name, value), wanted in zip(mine.state_dict().items(), model(seed=root).state_dict().values()):
            assert torch.equal(value, wanted), name
        assert all(parameter.requires_grad for parameter in mine.parameters())


def _other_names() -> None:
    bps.init()
    rank = bps.rank()
    # Other names on another rank: an error of both, not a wrong pairing.
    names = ["a", "b"][rank]
    with pytest.raises(bps.DeadlineExceededError, match=names):
        bps.broadcast_parameters({names: torch.ones(1)})
    bps.barrier("the end", timeout=120)


def test_other_names(run_workers: RunWorkers) -> None:
    run_workers(_other_names, BYTEPS_OP_TIMEOUT="3")


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1, betas=(0.8, 0.99), amsgrad=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.3),
    lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    lambda parameters: torch.optim.Adadelta(parameters),
    lambda parameters: torch.optim.Rprop(parameters),
    lambda parameters: torch.optim.ASGD(parameters),
    lambda parameters: torch.optim.NAdam(parameters),
]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _optimizer_state() -> None:
    bps.init()
    rank = bps.rank()
    for number, make in enumerate(OPTIMIZERS):

        def trained(steps: int, make: Callable[[Any], torch.optim.Optimizer] = make) -> torch.optim.Optimizer:
            torch.manual_seed(steps)
            parameters = [torch.ones(3, 2, requires_grad=True), torch.ones((), requires_grad=True)]
            optimizer = make([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5 / (1 + steps)}])
            for _ in range(steps):
                for parameter in parameters:
                    parameter.grad = torch.randn_like(parameter)
                optimizer.step()
            return optimizer

        # Rank 1 trained longer, and rank 0 not at all; rank 1's is sent.
        mine = trained(2 * rank)
        before = [parameter.detach().clone() for group in mine.param_groups for parameter in group["params"]]
        bps.broadcast_optimizer_state(mine, root_rank=1)
        assert _equal(mine.state_dict(), trained(2).state_dict()), (number, mine.state_dict())
        after = [parameter for group in mine.param_groups for parameter in group["params"]]
        assert _equal(after, before), "parameters are left alone"
        # It goes on from there.
        for parameter in after:
            parameter.grad = torch.ones_like(parameter)
        mine.step()

        # And the other way round: the receiver has more state than the root.
        mine = trained(2 * (1 - rank))
        bps.broadcast_optimizer_state(mine, root_rank=1)
        fresh = trained(0)
        make_fresh_state(fresh)
        assert fresh.state_dict()["state"] or isinstance(fresh, torch.optim.SGD), number
        assert _equal(mine.state_dict(), fresh.state_dict()), number

    parameter = torch.ones(2, requires_grad=True)
    distributed = bps.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.1 + rank, momentum=0.5), [("p", parameter)]
    )
    parameter.sum().backward()
    distributed.step()
    bps.broadcast_optimizer_state(distributed, root_rank=0)
    assert distributed.param_groups[0]["lr"] == 0.1


def _objects() -> None:
    bps.init()
    rank = bps.rank()
    for root in range(bps.size()):
        for obj in ({"epoch": 3, "name": "x"}, None, [torch.ones(2)], "y" * 3_000_000, b""):
            received = bps.broadcast_object(obj if rank == root else f"of rank {rank}", root_rank=root)
            assert type(received) is type(obj)
            assert _equal(received, obj)
        assert bps.broadcast_object((rank, root), root_rank=root, name="named") == (root, root)
    factor = rank
    function = bps.broadcast_object((lambda x: x * 10 + factor) if rank == 1 else None, root_rank=1)
    assert function(2) == 21


BODIES = [
    _parameters,
    _optimizer_state,
    _objects,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
