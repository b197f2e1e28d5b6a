"""broadcast_parameters, broadcast_optimizer_state and broadcast_object over several workers."""

from __future__ import annotations

import copy
import warnings
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


class _WideMomentum(torch.optim.Optimizer):
    """SGD that keeps a momentum in float32, and a list of two numbers in float64, whatever the parameters are of."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros(parameter.shape)
                state["norms"] = [torch.zeros(2, dtype=torch.float64), {"last": torch.zeros(1, dtype=torch.float64)}]
            state["momentum"].mul_(0.9).add_(parameter.grad)
            state["norms"][0] += parameter.grad.double().norm()
            parameter.sub_(0.1 * state["momentum"])


def _state_of_other_dtypes() -> None:
    """State whose dtypes are not those of the parameters has the same dtypes and bits on all ranks, and what comes of
    it, too."""
    bps.init()
    rank = bps.rank()
    for make in (torch.optim.NAdam, torch.optim.ASGD, _WideMomentum):
        for dtype in (torch.bfloat16, torch.float64):
            torch.manual_seed(0)
            parameters = [nn.Parameter(torch.randn(4, 3, dtype=dtype)), nn.Parameter(torch.randn(2, dtype=dtype))]
            optimizer = make(parameters)
            for step in range(6):
                if step == 3:
                    bps.broadcast_parameters([("0", parameters[0]), ("1", parameters[1])], 0)
                    own = copy.deepcopy(optimizer.state_dict())
                    bps.broadcast_optimizer_state(optimizer, 0)
                    assert rank != 0 or _equal(own, optimizer.state_dict()), "the root's is left alone"
                if step >= 3 or rank == 0:
                    for parameter in parameters:
                        source = torch.Generator().manual_seed(step)
                        parameter.grad = torch.randn(parameter.shape, generator=source).to(dtype)
                    optimizer.step()
                    if step >= 3:
                        states = bps.allgather_object((optimizer.state_dict(), parameters))
                        assert _equal(states[0], states[1]), (make, dtype, step, states)


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


def _a_scheduler_made_before() -> None:
    """The order of many programs: the scheduler has the plain optimizer, the distributed one gets rank 0's state."""
    bps.init()
    model = nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=1.0 + bps.rank(), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    saved: dict[str, Any] | None = None
    for _ in range(2):
        if saved is None:
            bps.broadcast_optimizer_state(optimizer, 0)
        else:
            optimizer.load_state_dict(saved)
        rate = optimizer.param_groups[0]["lr"]
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it did not see the step
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == rate / 2 == plain.param_groups[0]["lr"]
        assert bps.allgather_object(rate) == [rate] * bps.size()
        assert plain.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
        saved = optimizer.state_dict()
    bps.broadcast_parameters(model.state_dict(), 0)


class _Lookahead(torch.optim.Optimizer):
    """Has an optimizer inside, whose options and state are its own, also behind load_state_dict()."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.defaults, self.param_groups, self.state = inner.defaults, inner.param_groups, inner.state

    def step(self, closure: Any = None) -> None:
        self.inner.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


def _an_optimizer_inside_of_another() -> None:
    """The options that a scheduler changes are those that the inner one steps with."""
    bps.init()
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(
        _Lookahead(torch.optim.SGD(model.parameters(), lr=1.0 + bps.rank(), momentum=0.9)), model.named_parameters()
    )
    bps.broadcast_parameters(model.state_dict(), 0)
    bps.broadcast_optimizer_state(optimizer, 0)
    optimizer.load_state_dict(optimizer.state_dict())
    for rate in (1.0, 0.125):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        before = model.bias.detach().clone()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        moved = (before - model.bias.detach()) / rate
        torch.testing.assert_close(moved, torch.full((2,), 1.0 if rate == 1.0 else 1.9))
    weights = bps.allgather_object(model.weight.detach())
    assert all(torch.equal(weight, weights[0]) for weight in weights)


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
    _state_of_other_dtypes,
    _optimizers_that_differ,
    _a_scheduler_made_before,
    _an_optimizer_inside_of_another,
    _objects,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
