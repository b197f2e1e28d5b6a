"""Which GPU a worker sees, where BYTEPS_SET_CUDA_VISIBLE_DEVICES=1 asks for one each."""

from __future__ import annotations

from .environment import Environment
from .failure import LaunchError

_LISTS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def visible_gpu(environment: Environment, local_rank: int, workers: int) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for a worker of this host, or None if it is not asked for.

    It is the entry of its local rank in the first list that is set, CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, so
    that names of GPUs (GPU-..., MIG-...) may stand there; without a list, or with "all", the local rank itself. To the
    worker its GPU is number 0.

    Raises:
        LaunchError: the list has fewer GPUs than this host has workers.
    """
    if not environment.flag("BYTEPS_SET_CUDA_VISIBLE_DEVICES"):
        return None
    for name in _LISTS:
        value = environment.text(name)
        if value is None or value.lower() == "all":
            continue
        gpus = [] if value.lower() in ("none", "void") else [gpu.strip() for gpu in value.split(",") if gpu.strip()]
        if len(gpus) < workers:
            raise LaunchError(
                f"BYTEPS_SET_CUDA_VISIBLE_DEVICES=1: {name}={value} has {len(gpus)} GPUs for {workers} workers of "
                "this host"
            )
        return gpus[local_rank]
    return str(local_rank)
