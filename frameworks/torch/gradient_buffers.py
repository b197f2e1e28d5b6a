"""Where a gradient is read from, and where its sum is written.

Today both are the gradient itself: the sum replaces it in place, and nothing is allocated. This class is the one place
that decides it. A job that survives the death of a server needs its inputs intact until every worker has the sum; there
the two will be a pair of buffers per parameter that change places at each step, and `p.grad` the one last written.
"""

import torch


class GradientBuffers:
    """The memory of the gradients of one optimizer."""

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient to be reduced, in place. A parameter that got none in this step contributes zeros."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad
