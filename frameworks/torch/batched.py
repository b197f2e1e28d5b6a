"""What the unreleased BytePS 0.3 does to lists of tensors at once: fusing, zeroing, delay compensation.

Delay compensation corrects gradients that were computed with parameters of an earlier step: to first order, by the
square of the gradient as the diagonal of the second derivative (https://arxiv.org/abs/1609.08326).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim.adam import adam

_Tensors = Sequence[torch.Tensor]


def _check_lengths(**lists: _Tensors) -> None:
    lengths = {name: len(tensors) for name, tensors in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the lists have different lengths: {lengths}")


@torch.no_grad()
def batched_fuse_(src_tensors: _Tensors, dst: torch.Tensor) -> int:
    """Copies tensors into one, one behind the other. Returns 0.

    Raises:
        ValueError: `dst` has another number of elements than all of them together.
    """
    parts = [tensor.reshape(-1) for tensor in src_tensors]
    _check_size(parts, dst)
    for part, place in zip(parts, dst.view(-1).split([part.numel() for part in parts])):
        place.copy_(part)
    return 0


@torch.no_grad()
def batched_unfuse_(src: torch.Tensor, dst_tensors: _Tensors) -> int:
    """Copies one tensor into several, one behind the other. Returns 0. Raises what batched_fuse_() does."""
    _check_size(dst_tensors, src)
    for part, place in zip(src.reshape(-1).split([tensor.numel() for tensor in dst_tensors]), dst_tensors):
        place.copy_(part.view(place.shape))
    return 0


def _check_size(parts: _Tensors, whole: torch.Tensor) -> None:
    total = sum(part.numel() for part in parts)
    if total != whole.numel():
        raise ValueError(f"the list has {total} elements, the one tensor {whole.numel()}")


@torch.no_grad()
def batched_zero_(tensors: Sequence[torch.Tensor | None]) -> int:
    """Sets tensors to zero; None is skipped. Returns 0."""
    given = [tensor for tensor in tensors if tensor is not None]
    if given:
        torch._foreach_zero_(given)
    return 0


@torch.no_grad()
def delay_compensation_(params: _Tensors, grads: _Tensors, prev_params: _Tensors, dc_lambda: float) -> int:
    """Corrects gradients for what the parameters have moved since: g += dc_lambda * g * g * (p - previous p); then the
    parameters become the previous ones. Returns 0.

    Raises:
        ValueError: the lists have different lengths.
    """
    _check_lengths(params=params, grads=grads, prev_params=prev_params)
    for parameter, gradient, previous in zip(params, grads, prev_params):
        gradient.addcmul_(gradient * gradient, parameter - previous, value=dc_lambda)
        previous.copy_(parameter)
    return 0


@torch.no_grad()
def dc_adam_(
    params: _Tensors,
    grads: _Tensors,
    prev_params: _Tensors,
    dc_lambda: float,
    exp_avgs: _Tensors,
    exp_avg_sqs: _Tensors,
    steps: Sequence[int],
    lr: float,
    eps: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
) -> int:
    """delay_compensation_(), then a step of torch.optim.Adam.

    Args:
        params, grads, prev_params, dc_lambda: as delay_compensation_'s.
        exp_avgs, exp_avg_sqs: Adam's state.
        steps: how many steps each parameter has taken, this one included.
        lr, eps, weight_decay, beta1, beta2: Adam's options.

    Returns:
        0.

    Raises:
        ValueError: the lists have different lengths.
    """
    _check_lengths(params=params, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
    if len(steps) != len(params):
        raise ValueError(f"there are {len(steps)} steps for {len(params)} parameters")
    delay_compensation_(params, grads, prev_params, dc_lambda)
    adam(
        list(params),
        list(grads),
        list(exp_avgs),
        list(exp_avg_sqs),
        [],
        [torch.tensor(float(step - 1), device="cpu") for step in steps],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )
    return 0
