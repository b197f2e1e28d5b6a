"""The gradients that need little: nearly all.

Most gradients are host memory of their own, which is sent as it is and replaced by the sum. push_pull_async_into() and
its handle take any tensor, and look at each from anew; in a step of many small gradients that is most of what they
cost. Here what does not change between steps is handed to the library once, and the ends of many are seen together.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps import _native
from byteps.arguments import tensor_name
from byteps.reduce_op import ReduceOp
from byteps.session import Session, current_session
from byteps.speed import SPEED
from byteps.torch.compression import Compressor
from byteps.torch.dtypes import dtype_code
from byteps.torch.gradient_owner import others_have
from byteps.torch.handle import Handle
from byteps.torch.wire_buffer import is_wire_ready

import torch


def own_memory(gradient: torch.Tensor | None) -> torch.UntypedStorage | None:
    """The memory of a gradient of no subclass, if the library can use it in place, no other tensor has a part of it,
    and its changes are counted; else None."""
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or not is_wire_ready(gradient):
        return None
    storage = gradient.untyped_storage()
    if storage.nbytes() != gradient.nbytes or others_have(storage) or gradient.is_inference():
        return None
    return storage


class PreparedPushPull:
    """The reductions of one name over all workers, in place. Threads: one at a time."""

    __slots__ = ("_dtype", "_native", "_op", "_session", "_shape", "name")

    def __init__(self, name: str) -> None:
        """Raises ValueError: the name cannot be one."""
        self.name = tensor_name(name)
        # What `_native` was prepared for:
        self._session: Session | None = None
        self._dtype: torch.dtype | None = None
        self._shape: torch.Size | None = None
        self._op: ReduceOp | None = None
        self._native: _native.PreparedPushPull

    def start(self, tensor: torch.Tensor, memory: torch.UntypedStorage, op: ReduceOp, priority: int) -> _native.Request:
        """Starts the reduction of a tensor into itself. `memory`: its own_memory(). `op`: not Adasum. Errors are those
        of push_pull_async_inplace()."""
        session = current_session()
        if (
            session is not self._session
            or tensor.shape != self._shape
            or tensor.dtype is not self._dtype
            or op is not self._op
        ):
            self._prepare(session, tensor, op)
        address = tensor.data_ptr()
        return self._native.start(address, address, memory, priority)

    def _prepare(self, session: Session, tensor: torch.Tensor, op: ReduceOp) -> None:
        self._native = session.native.prepare_push_pull(self.name, dtype_code(tensor.dtype), tensor.shape, op)
        self._session, self._dtype, self._shape, self._op = session, tensor.dtype, tensor.shape, op


class InPlace:
    """Such a gradient on its way; to its users it is an InFlight of reducer.py."""

    __slots__ = ("_address", "_handle", "_name", "_touched", "_version", "gradient", "parameter", "priority", "request")

    context = None  # of compression: there is none

    def __init__(
        self, request: _native.Request, name: str, parameter: torch.Tensor, gradient: torch.Tensor, priority: int
    ) -> None:
        self.request = request
        self.parameter = parameter
        self.gradient = gradient
        self.priority = priority
        self._name = name
        self._version = gradient._version
        self._address = gradient.data_ptr()
        self._touched: bool | None = None  # not asked yet
        self._handle: Handle | None = None

    @property
    def handle(self) -> Handle:
        """Made for who asks for it; finish_together() then leaves this gradient alone."""
        if self._handle is None:
            self._handle = Handle(self.request, self._name, self.gradient)
        return self._handle

    @property
    def has_handle(self) -> bool:
        """Whether somebody has asked for it."""
        return self._handle is not None

    @property
    def touched(self) -> bool:
        """Whether the gradient had been seen to change until this was asked first."""
        if self._touched is None:
            gradient = self.gradient
            moved = gradient.data_ptr() != self._address  # by `p.grad.data = ...`
            self._touched = moved or gradient._version != self._version or self.parameter.grad is not gradient
        return self._touched

    def finish(self, compression: type[Compressor]) -> None:
        """Call after the handle was synchronized: the gradient holds the sum."""


def finish_together(items: Sequence[object]) -> bool:
    """What synchronize() does to the handle of each, in little time. False: not all are such gradients, or some have
    failed; their handles are still to be synchronized."""
    plain = [item for item in items if isinstance(item, InPlace) and not item.has_handle]
    if len(plain) < len(items) or _native.wait_all([item.request for item in plain]):
        return False
    gradients = [item.gradient for item in plain]
    SPEED.record(sum([gradient.nbytes for gradient in gradients]))
    _increment_versions(gradients)
    return True


def _increment_versions(tensors: Sequence[torch.Tensor]) -> None:
    """The library writes behind autograd's back; a backward pass that saved an old value must notice."""
    if _TAKES_MANY:
        torch.autograd.graph.increment_version(tensors)
        return
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


def _takes_many() -> bool:
    """Does this PyTorch's increment_version() take several tensors?"""
    tensor = torch.zeros(1, device="cpu")
    try:
        torch.autograd.graph.increment_version([tensor])
    except (AttributeError, TypeError, RuntimeError):
        return False
    return tensor._version == 1


_TAKES_MANY = _takes_many()
