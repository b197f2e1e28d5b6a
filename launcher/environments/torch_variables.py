"""Programs of torch.distributed that something else than torchrun has started: RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, as init_process_group() wants them. torch.multiprocessing.spawn and many scripts set them."""

from __future__ import annotations

from collections.abc import Mapping

from ..failure import LaunchError
from .exchange import LastingExchange
from .place import Surroundings, number, this_host
from .torch_store import TorchStore

_MARKS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NAME = "torch.distributed (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"


def detect(variables: Mapping[str, str]) -> Surroundings | None:
    """See environments.detect."""
    if not all(variables.get(name) for name in _MARKS):
        return None
    rank, size = number(variables, "RANK", _NAME), number(variables, "WORLD_SIZE", _NAME)
    if not 0 <= rank < size:
        raise LaunchError(f"RANK={rank} and WORLD_SIZE={size}: the rank must be one of 0 to {size - 1}")
    host, port = variables["MASTER_ADDR"], number(variables, "MASTER_PORT", _NAME)
    store = TorchStore(_NAME, host, port, rank, size, serves=rank == 0)
    return Surroundings(_NAME, rank, size, this_host(), LastingExchange(store))
