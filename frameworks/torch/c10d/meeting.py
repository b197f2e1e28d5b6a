"""The job of a process group, where the program alone has said who its processes are.

`torch.multiprocessing.spawn` with `init_process_group("byteps", rank=rank, world_size=size)`: no launcher, no RANK, but
torch.distributed knows rank and size and has a store that all ranks reach, however `init_method` found it.
"""

from __future__ import annotations

from typing import Any

from byteps import basics, surroundings

from torch import distributed as dist


def init_for(options: Any) -> None:
    """init(), if this process is in no job yet. What has started it counts first, if that speaks of as many ranks.

    Args:
        options: of a process group that is made, or what looks like them.

    Raises:
        BytePSError: see init().
    """
    if basics.is_initialized() or not _is_whole(options):
        basics.init()
        return
    from byteps.launcher.environments.exchange import LastingExchange
    from byteps.launcher.environments.place import Surroundings, this_host
    from byteps.launcher.environments.torch_store import OpenStore

    rank, size = options.group_rank, options.group_size
    exchange = LastingExchange(OpenStore(dist.PrefixStore("byteps", options.store), rank, size))
    with surroundings.told(Surroundings("init_process_group()", rank, size, this_host(), exchange)):
        basics.init()


def _is_whole(options: Any) -> bool:
    """Whether all processes make this group, and meet: those of a part of them are no job."""
    if getattr(options, "store", None) is None:
        return False
    return options.group_size == (dist.get_world_size() if dist.is_initialized() else options.group_size)
