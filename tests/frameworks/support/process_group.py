"""The backend of torch.distributed in the workers of a job."""

from __future__ import annotations

from typing import Any

import byteps.torch as bps
import torch
import torch.distributed as dist


def begin(**options: Any) -> tuple[int, int]:
    """The rank and the size of a new group of all workers. `options`: of init_process_group()."""
    end()
    dist.init_process_group("byteps", init_method="byteps://", **options)
    assert dist.get_backend() == "byteps"
    assert (dist.get_rank(), dist.get_world_size()) == (bps.rank(), bps.size())
    torch.set_num_threads(1)
    return dist.get_rank(), dist.get_world_size()


def end() -> None:
    """Of an earlier body, too, that failed and left its group."""
    if dist.is_initialized():
        dist.destroy_process_group()
