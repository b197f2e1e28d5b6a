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


def _optimizers_that_differ() -> None:
    """An error that says how, on every rank, before anything is sent; nothing has changed, and the session goes on."""
    bps.init()
    rank = bps.rank()
    sgd, adam = torch.optim.SGD, torch.optim.Adam

    def parameters(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.ones(shape, requires_grad=True) for shape in shapes]

    def made(kind: Any, *groups: list[torch.Tensor]) -> torch.optim.Optimizer:
        return kind([{"params": group} for group in groups], lr=1.0 + rank)

    class Odd(sgd):
        """Its state is of a data type that cannot be sent."""

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["odd"] = torch.zeros(2).to(torch.float8_e4m3fn)

    def distributed(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return bps.DistributedOptimizer(optimizer) if rank == 0 else optimizer

    two = [(2,), (3, 4)]
    for words, mine, theirs in (
        (("SGD", "Adam"), lambda: made(sgd, parameters((2,))), lambda: made(adam, parameters((2,)))),
        (
            ("2 parameter groups", "1 parameter groups"),
            lambda: made(adam, parameters((2,)), parameters((2,))),
            lambda: made(adam, parameters((2,), (2,))),
        ),
        (
            ("2 parameters in param_groups[0]", "1 parameters in"),
            lambda: made(adam, parameters(*two)),
            lambda: made(adam, parameters((2,))),
        ),
        (
            ("shape (3, 4) for parameter 1 in param_groups[0]", "shape (4, 3) for it"),
            lambda: made(adam, parameters(*two)),
            lambda: made(adam, parameters((2,), (4, 3))),
        ),
    ):
        optimizer = (mine if rank == 0 else theirs)()
        with pytest.raises(bps.FailedPreconditionError, match="broadcast_optimizer_state") as raised:
            bps.broadcast_optimizer_state(optimizer, root_rank=0)
        for number, word in enumerate(words):
            assert f"rank {number} has" in str(raised.value) and word in str(raised.value), raised.value
        assert optimizer.param_groups[0]["lr"] == 1.0 + rank
        # At once, with the same name: nothing of it is on its way.
        good = distributed(made(adam, parameters(*two)))
        bps.broadcast_optimizer_state(good, root_rank=1)
        assert good.param_groups[0]["lr"] == 2.0

    with pytest.raises(bps.FailedPreconditionError, match="rank 0 has root_rank=0, rank 1 has root_rank=1"):
        bps.broadcast_optimizer_state(made(adam, parameters((2,))), root_rank=rank)

    # What one rank is refused for, the other is told.
    for bad, error, text in (
        (lambda: torch.optim.LBFGS(parameters((2,))), ValueError, "LBFGS"),
        (lambda: made(Odd, parameters((2,))), ValueError, "float8"),
        (lambda: nn.Linear(1, 1), TypeError, "must be a torch.optim.Optimizer"),
    ):
        with pytest.raises(error if rank == 1 else bps.FailedPreconditionError, match=text) as raised:
            bps.broadcast_optimizer_state(bad() if rank == 1 else made(adam, parameters((2,))), root_rank=1)
        assert rank == 1 or "rank 1 cannot take part" in str(raised.value)
    good = made(adam, parameters((2,)))
    bps.broadcast_optimizer_state(good, root_rank=1)
    assert good.param_groups[0]["lr"] == 2.0

    class Wrapper:
        """Of no class that PyTorch knows."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self._optimizer = optimizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._optimizer, name)

    good = made(adam, parameters((2,)))
    bps.broadcast_optimizer_state(Wrapper(good), root_rank=1)
    assert good.param_groups[0]["lr"] == 2.0


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
    _optimizers_that_differ,
    _objects,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
