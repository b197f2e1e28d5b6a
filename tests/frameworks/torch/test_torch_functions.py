"""broadcast_parameters, broadcast_optimizer_state and broadcast_object of one worker alone: what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps


@pytest.mark.parametrize(
    "params",
    [
        5,
        torch.ones(2),
        "weights",
        {"a": 1.0},
        [("a", torch.ones(1)), ("a", torch.ones(1))],
        [("a", torch.ones(1), 3)],
    ],
)
def test_wrong_parameters(alone: None, params: object) -> None:
    with pytest.raises(ValueError, match=r"params has|params is"):
        bps.broadcast_parameters(params, root_rank=0)


def test_all_forms_of_parameters(alone: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for params in (
        model.state_dict(),
        dict(model.named_parameters()),
        model.named_parameters(),
        list(model.named_parameters()),
        list(model.parameters()),
        [("none", None)],
        {},
    ):
        bps.broadcast_parameters(params, root_rank=0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_lbfgs_is_refused(alone: None) -> None:
    optimizer = torch.optim.LBFGS([torch.ones(2, requires_grad=True)])
    with pytest.raises(ValueError, match="LBFGS"):
        bps.broadcast_optimizer_state(optimizer, root_rank=0)


def test_the_root_keeps_its_state(alone: None) -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.5)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state[parameter]["step"] == 0, "no step counts"
    assert torch.equal(parameter, torch.ones(3))
    parameter.sum().backward()
    optimizer.step()
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state[parameter]["step"] == 1


def test_wrong_root(alone: None) -> None:
    for call in (
        lambda: bps.broadcast_parameters({"a": torch.ones(1)}, root_rank=1),
        lambda: bps.broadcast_object(1, root_rank=-1),
        lambda: bps.broadcast(torch.ones(1), 2),
    ):
        with pytest.raises(ValueError, match="root_rank is"):
            call()
