"""NDArrays whose size is known only when they have come: what allgather and alltoall return.

MXNet's engine cannot have one. An NDArray carries its shape beside its memory, and a program that asks for the shape,
or hands the array to an operator, reads it at once; MXNet's own operators of such results (boolean_mask) block their
caller until the engine has run them. So these arrays have no handle until one is asked for, which is at their first
use: that waits for the operation, and makes the array an ordinary one. Until then no thread waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx

_SLOT: Any = mx.nd.NDArray.handle  # of the class that all arrays derive from

# What makes the array that has come: it waits, and raises MXNetError for an operation that failed.
Come = Callable[[], mx.nd.NDArray]


class _Coming:
    """In the place of a handle."""

    def __init__(self, come: Come) -> None:
        self._come = come
        self._guard = threading.Lock()
        self._error: Exception | None = None

    def settle(self, array: Any) -> None:
        """Makes `array`, in which this is, the one that has come. Raises what went wrong, each time."""
        with self._guard:
            if self._error is not None:
                raise self._error
            if _SLOT.__get__(array) is not self:
                return  # another thread was here before
            try:
                come = self._come()
            except Exception as error:
                self._error = error
                raise
            # The handle changes its owner.
            _SLOT.__set__(array, _SLOT.__get__(come))
            _SLOT.__set__(come, None)
            array.__class__ = type(array).__mro__[1]


def _handle(array: Any) -> Any:
    """The handle of a late array, which is an ordinary one from then on."""
    held = _SLOT.__get__(array)
    if isinstance(held, _Coming):
        held.settle(array)
    return _SLOT.__get__(array)


class _LateClassic(mx.nd.NDArray):
    __slots__ = ()
    handle = property(_handle, _SLOT.__set__)

    def __del__(self) -> None:
        """It was not asked for: what has come is dropped."""


class _LateNumPy(mx.np.ndarray):
    __slots__ = ()
    handle = property(_handle, _SLOT.__set__)

    def __del__(self) -> None:
        """As above."""


def late_array(like: mx.nd.NDArray, come: Come) -> mx.nd.NDArray:
    """An array of the interface of `like`, classic or NumPy's, that `come` makes at its first use."""
    array = (_LateNumPy if isinstance(like, mx.np.ndarray) else _LateClassic)(None)
    _SLOT.__set__(array, _Coming(come))
    return array
