"""Groups that are not the same on all ranks: at once an error of each of them that names the ranks and a member, where
the ranks have to agree; none where a group is this rank's own affair."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps
import byteps.torch as hvd
from jobs import Outcomes
from torch import nn


def _check_named(error: pytest.ExceptionInfo[BaseException], *names: str) -> None:
    """The last rank is the odd one out. That the error is not the deadline's its class says."""
    text = str(error.value)
    for name in names:
        assert name in text, text
    ranks = {int(rank) for found in re.findall(r"ranks? (\d+(?:, \d+)*)", text) for rank in found.split(", ")}
    assert hvd.size() - 1 in ranks and len(ranks) >= 2, text


def _other_numbers_of_members() -> None:
    """The last rank has one more."""
    hvd.init()
    size = hvd.size()
    last = hvd.rank() == size - 1
    calls: dict[str, Callable[[list[torch.Tensor], str], Any]] = {
        "grouped_allreduce": lambda tensors, name: hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name),
        "grouped_allgather": lambda tensors, name: hvd.grouped_allgather(tensors, name=name),
        "grouped_reducescatter": lambda tensors, name: hvd.grouped_reducescatter(tensors, op=hvd.Sum, name=name),
    }
    for kind, call in calls.items():
        for turn, members in enumerate(((2, 3), (1, 2), (3, 1))):
            tensors = [torch.ones(2 * size) for _ in range(members[last])]
            name = f"uneven{turn}"
            with pytest.raises(byteps.FailedPreconditionError) as error:
                call(tensors, name)
            _check_named(error, f"{kind}.{name}.", "" if kind == "grouped_allreduce" else "of a group of ")
            # The name is free again, and whoever agrees gets a result.
            assert len(call(tensors[:1], name)) == 1
    handle = hvd.grouped_allreduce_async_([torch.ones(4) for _ in range(2 + last)], op=hvd.Sum, name="uneven, later")
    with pytest.raises(hvd.HorovodInternalError) as error:
        hvd.synchronize(handle)
    _check_named(error, "uneven, later.")


def _train(groups: int, op: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op, groups=groups)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        for step in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(inputs).square().sum().backward()
            optimizer.step()
    except byteps.BytePSError:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))
        raise
    return [parameter.detach().clone() for parameter in model.parameters()]


def _gradients_in_other_groups() -> None:
    """Each rank waits for its own groups, and sends gradients one by one: they meet by their names."""
    hvd.init()
    last = hvd.rank() == hvd.size() - 1
    plain = _train(0, hvd.Average)
    for mine in ((1, 2), (0, 2), (4, 1)):
        assert all(torch.equal(a, b) for a, b in zip(_train(mine[last], hvd.Average), plain)), mine


def _steps_in_other_groups() -> None:
    """Adasum sends a group as one operation."""
    hvd.init()
    last = hvd.rank() == hvd.size() - 1
    plain = _train(2, hvd.Adasum)
    for mine in ((1, 2), (0, 2), (4, 1)):
        with pytest.raises(byteps.FailedPreconditionError) as error:
            _train(mine[last], hvd.Adasum)
        _check_named(error, "adasum.Gradient.", "of a group of ")
    assert all(torch.equal(a, b) for a, b in zip(_train(2, hvd.Adasum), plain))


BODIES = [_other_numbers_of_members, _gradients_in_other_groups, _steps_in_other_groups]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def test_one_of_three_ranks(run_bodies: Callable[..., Outcomes]) -> None:
    outcomes = run_bodies(BODIES, 3, 1)
    for body in BODIES:
        outcomes.check(body)
