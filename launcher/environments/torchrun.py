"""torchrun (torch.distributed.run): RANK, WORLD_SIZE and its own store at MASTER_ADDR:MASTER_PORT."""

from __future__ import annotations

from collections.abc import Mapping

from ..failure import LaunchError
from .exchange import LastingExchange
from .place import Surroundings, number
from .torch_store import TorchStore

_NAME = "torchrun"


def detect(variables: Mapping[str, str]) -> Surroundings | None:
    """See environments.detect."""
    if "TORCHELASTIC_RUN_ID" not in variables or "RANK" not in variables:
        return None
    rank, size = number(variables, "RANK", _NAME), number(variables, "WORLD_SIZE", _NAME)
    host, port = variables.get("MASTER_ADDR", ""), number(variables, "MASTER_PORT", _NAME)
    if not host:
        raise LaunchError("torchrun has started this process, but MASTER_ADDR is not set")
    if variables.get("TORCHELASTIC_USE_AGENT_STORE", "True") != "True":
        raise LaunchError(
            "torchrun has started this process without a store of its agent (TORCHELASTIC_USE_AGENT_STORE="
            f"{variables['TORCHELASTIC_USE_AGENT_STORE']}): unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE, or set DMLC_* "
            "and BYTEPS_LOCAL_RANK by hand"
        )
    # One agent is one host, also where two of them share a machine: LOCAL_RANK counts from 0 in each.
    group = number(variables, "GROUP_RANK", _NAME)
    return Surroundings(_NAME, rank, size, f"agent {group}", LastingExchange(TorchStore(_NAME, host, port, rank, size)))
