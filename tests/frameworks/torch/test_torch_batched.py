"""Operations on lists of tensors: fusing, zeroing, delay compensation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps


def test_fuse_and_unfuse() -> None:
    tensors = [torch.arange(6.0).view(2, 3), torch.tensor(7.0), torch.arange(4.0)[::2]]
    fused = torch.empty(9)
    assert bps.batched_fuse_(tensors, fused) == 0
    assert fused.tolist() == [0, 1, 2, 3, 4, 5, 7, 0, 2]
    back = [torch.empty(2, 3), torch.empty(()), torch.empty(2)]
    assert bps.batched_unfuse_(fused, back) == 0
    assert all(torch.equal(a, b) for a, b in zip(back, tensors))
    for call in (lambda: bps.batched_fuse_(tensors, torch.empty(8)), lambda: bps.batched_unfuse_(torch.empty(8), back)):
        with pytest.raises(ValueError, match="9 elements"):
            call()


def test_zero() -> None:
    tensors = [torch.ones(2), None, torch.ones(3, requires_grad=True)]
    assert bps.batched_zero_(tensors) == 0 and bps.batched_zero_([]) == 0
    assert tensors[0].sum() == 0 and tensors[2].sum() == 0


def test_delay_compensation() -> None:
    parameter, gradient, previous = torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([1.0])
    assert bps.delay_compensation_([parameter], [gradient], [previous], 0.5) == 0
    assert gradient.item() == 2.0 + 0.5 * 4.0 * 2.0 and previous.item() == 3.0
    with pytest.raises(ValueError, match="lengths"):
        bps.delay_compensation_([parameter], [gradient], [], 0.5)


def test_dc_adam_without_delay_is_adam() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(5), None
    theirs = mine.clone().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=0.1, weight_decay=0.01)
    previous, average, square = mine.clone(), torch.zeros(5), torch.zeros(5)
    for step in range(1, 4):
        gradient = torch.randn(5)
        theirs.grad = gradient.clone()
        adam.step()
        previous.copy_(mine)  # no delay
        bps.dc_adam_([mine], [gradient], [previous], 0.5, [average], [square], [step], 0.1, 1e-8, 0.01, 0.9, 0.999)
        assert torch.equal(mine, theirs.detach())
    with pytest.raises(ValueError, match="steps"):
        bps.dc_adam_([mine], [mine], [mine], 0.5, [mine], [mine], [], 0.1, 1e-8, 0, 0.9, 0.999)
