"""What torch.compile makes of BytePS's own code: whether it traces what runs, and what it is to leave alone.

A training step may be compiled as a whole. The compiler then looks into everything that the step calls, also into the
hooks that the backward pass calls. What starts operations and waits for them has nothing that could be compiled, and
asks for what a tracer does not know (addresses, reference counts).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch

# PyTorch 2.3 has brought the public name.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling


@functools.cache
def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which torch.compile does not look into, nor into what it calls. Not for use at import: it imports
    the compiler, which takes a second, which a program with an optimizer has spent already."""
    return cast(Callable[..., Any], torch.compiler.disable(function))
