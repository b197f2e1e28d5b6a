"""Whether torch.compile traces the code that runs."""

from __future__ import annotations

from collections.abc import Callable

import torch

# PyTorch 2.3 has brought the public name.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
