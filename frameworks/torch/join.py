"""join() for users of Horovod."""

from __future__ import annotations

from byteps import basics
from byteps.arguments import whole_number


def join(device: int = -1, *, timeout: float | None = None) -> int:
    """Says that this rank has no data left, and waits until all ranks have said so.

    Until then it counts as zeros in what the others reduce (Sum and Average, of all ranks and of process sets, and what
    DistributedOptimizer and DistributedDataParallel reduce), averages divide by all ranks as ever. Broadcasts, gathers,
    exchanges, Min, Max and Product are an error on every rank while one has joined, and so are sparse gradients: give
    sparse_as_dense=True.

    Args:
        device: accepted for compatibility; the zeros are in host memory.
        timeout: seconds since the last operation of another rank; None means BYTEPS_OP_TIMEOUT.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        BytePSError: see byteps.join.
        ValueError: before init().
        TypeError: `device` is no whole number.
    """
    whole_number("device", device)
    return basics.join(timeout)
