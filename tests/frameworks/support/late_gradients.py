"""Gradients that are not home when the optimizer asks: what a slow network does, at will.

with nothing_is_home():
    optimizer.step()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from byteps.torch.handle import Handle


@contextlib.contextmanager
def nothing_is_home(late: bool = True) -> Iterator[None]:
    """With `late`, no gradient is home at step(), nor before it is waited for."""
    poll = Handle.poll
    if late:
        Handle.poll = lambda self: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        Handle.poll = poll  # type: ignore[method-assign]
