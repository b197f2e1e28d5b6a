"""Where a gradient is read from, and where its sum is written.

Where a host has several workers, and shared memory, the sum of a large gradient goes into memory of BytePS's own, which
the others of the host see, and becomes `p.grad`. A gradient that autograd then accumulates into
(zero_grad(set_to_none=False)) is read from there, and the next sum goes into a second such buffer: the two change
places at each step, nothing is copied, and the gradient is whole until its sum is complete. One that autograd makes
anew at each step (set_to_none=True) is read where it is.

Everywhere else the sum replaces the gradient in place: where there is nothing to gain, for small gradients, and for one
whose memory something besides the parameter holds (gradient_owner.py), such as a trainer with one flat buffer for all.
A gradient that somebody has kept while it was on its way gets a copy of the sum, and stays `p.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps.session import current_session
from byteps.torch.dtypes import gradient_dtype
from byteps.torch.gradient_owner import holds_entry_alone, holds_gradient_alone
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
        """One that is not the gradient's own memory, and that the user has not kept from an earlier step."""
        address = gradient.data_ptr()
        for index in range(len(self.tensors)):
            if self.tensors[index].data_ptr() == address:
                continue
            if holds_entry_alone(self.tensors, index):
                return self.tensors[index]
            self.tensors[index] = arena.empty_like(gradient)  # the user's one is the user's from here on
            return self.tensors[index]
        self.tensors.append(arena.empty_like(gradient))
        return self.tensors[-1]


class GradientBuffers:
    """The memory of the gradients of one optimizer. `enabled`: False: everything in place."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._arena: Arena | None = None
        self._shared = False  # are there other workers on the host, which see the arena?
        self._pairs: dict[torch.Tensor, _Pair] = {}

    def output(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Where the sum of p.grad is to go: a tensor to become p.grad, or None: into p.grad itself. A parameter that
        got no gradient in this step contributes zeros. Nothing but the parameter may hold p.grad during the call."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
        if not self.may_replace(parameter.grad):
            return None
        pair = self._pair(parameter, parameter.grad)
        if not holds_gradient_alone(parameter, pair.tensors):
            return None
        assert self._arena is not None
        return pair.other(parameter.grad, self._arena)

    def of(self, parameter: torch.Tensor) -> Sequence[torch.Tensor]:
        """Those that it has."""
        return self._pairs[parameter].tensors

    def may_replace(self, gradient: torch.Tensor) -> bool:
        """Whether another tensor would be faster, and as good, if the parameter alone holds this one."""
        if gradient.nbytes < _LEAST_BYTES or not self._enabled:
            return False
        if not is_wire_ready(gradient) or type(gradient) is not torch.Tensor:
            return False
        session = current_session()
        if self._arena is None or self._arena.session is not session:
            # What lies in the buffers of an earlier session is ordinary memory in this one.
            self._pairs.clear()
            self._arena = Arena(session)
            info = session.native.info()
            self._shared = info["local_size"] > 1 and info["shared_buffers"]
        return self._shared

    def _pair(self, parameter: torch.Tensor, gradient: torch.Tensor) -> _Pair:
        pair = self._pairs.get(parameter)
        if pair is None or (pair.tensors and pair.tensors[0].dtype != gradient.dtype):
            pair = self._pairs[parameter] = _Pair()
        if any(tensor.shape != gradient.shape for tensor in pair.tensors):
            pair.tensors.clear()
        return pair
