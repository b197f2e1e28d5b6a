"""Where a gradient is read from, and where its sum is written.

Where a host has several workers, and shared memory, the sum of a large gradient goes into memory of BytePS's own, which
the others of the host see, and becomes `p.grad`. A gradient that autograd then accumulates into
(zero_grad(set_to_none=False)) is read from there, and the next sum goes into a second such buffer: the two change
places at each step, nothing is copied, and the gradient is whole until its sum is complete. One that autograd makes
anew at each step (set_to_none=True), or that the user has put there, is read where it is.

Everywhere else, and for small gradients, the sum replaces the gradient in place.
"""

from __future__ import annotations

from byteps.session import current_session
from byteps.torch.memory import Arena
from byteps.torch.wire_buffer import is_wire_ready

import torch

# What is smaller travels within messages.
_LEAST_BYTES = 64 << 10


class _Pair:
    """The buffers of one parameter; the second is made when it is needed."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def other(self, gradient: torch.Tensor, arena: Arena) -> torch.Tensor:
        """One that is not the gradient's own memory."""
        for tensor in self.tensors:
            if tensor.data_ptr() != gradient.data_ptr():
                return tensor
        self.tensors.append(arena.empty_like(gradient))
        return self.tensors[-1]


class GradientBuffers:
    """The memory of the gradients of one optimizer. `enabled`: False: everything in place."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._arena: Arena | None = None
        self._shared = False  # are there other workers on the host, who see the arena?
        self._pairs: dict[torch.Tensor, _Pair] = {}

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient to be reduced. A parameter that got none in this step contributes zeros."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def output(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Where the sum of `gradient` goes: a tensor to become p.grad, or the gradient itself."""
        small = gradient.numel() * gradient.element_size() < _LEAST_BYTES
        if not self._enabled or small or not is_wire_ready(gradient) or type(gradient) is not torch.Tensor:
            return gradient
        session = current_session()
        if self._arena is None or self._arena.session is not session:
            # What lies in the buffers of an earlier session is ordinary memory in this one.
            self._pairs.clear()
            self._arena = Arena(session)
            info = session.native.info()
            self._shared = info["local_size"] > 1 and info["shared_buffers"]
        if not self._shared:
            return gradient
        pair = self._pairs.get(parameter)
        if pair is None or (pair.tensors and pair.tensors[0].dtype != gradient.dtype):
            pair = self._pairs[parameter] = _Pair()
        if any(tensor.shape != gradient.shape for tensor in pair.tensors):
            pair.tensors.clear()
        return pair.other(gradient, self._arena)
