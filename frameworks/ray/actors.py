"""What runs on Ray's nodes: a worker, and a server."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from byteps.ray.log import set_target
from byteps.ray.places import Report

import ray

_KEPT: list[Any] = []  # what is beside this process; it ends with it


def report() -> Report:
    """About the host that we are on. Without GPUs: Ray Train shares those of a host among its workers itself."""
    from byteps.launcher.environments.addresses import own_networks
    from byteps.launcher.environments.place import this_host
    from byteps.launcher.environments.silence import silence

    return Report(this_host(), own_networks(os.environ.get("DMLC_INTERFACE")), silence(os.environ))


def _own_gpus() -> list[str]:
    """The GPUs that Ray has made visible to this actor. None where it has not set CUDA_VISIBLE_DEVICES: the program has
    forbidden it (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES) or set another, or the GPUs are not NVIDIA's."""
    gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
    return gpus if os.environ.get("CUDA_VISIBLE_DEVICES") == ",".join(gpus) else []


def start_services(address: str | None, servers: Sequence[int], common: dict[str, str], workers: int) -> int:
    """A coordinator at `address`, if one is given, and servers, beside this process; the coordinator's port."""
    from byteps.launcher.environment import Environment
    from byteps.launcher.environments.companion import Companion
    from byteps.launcher.failure import LaunchError

    try:
        companion = Companion(Environment(os.environ))
        port = companion.start(address, servers, common, str(workers))
    except LaunchError as error:
        raise RuntimeError(str(error)) from None
    _KEPT.append(companion)
    return port


def set_variables(variables: Mapping[str, str]) -> None:
    """Of this process; None of another job are left."""
    for name in ("BYTEPS_FORCE_DISTRIBUTED", "BYTEPS_JOB_TOKEN_FILE", "BYTEPS_GLOBAL_RANK"):
        os.environ.pop(name, None)
    os.environ.update(variables)


class Worker:
    """An actor that trains."""

    def __init__(self) -> None:
        self._executable: Any = None

    def report(self) -> Report:
        """See report(). With the GPUs: the other workers of the host are to see them, too."""
        return dataclasses.replace(report(), gpus=_own_gpus())

    def start_services(self, address: str | None, servers: Sequence[int], common: dict[str, str], workers: int) -> int:
        """See start_services()."""
        return start_services(address, servers, common, workers)

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """See set_variables()."""
        set_variables(variables)

    def make(self, kind: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Makes what execute() hands to its functions."""
        self._executable = kind(*args, **kwargs)

    def execute(self, function: Callable[[Any], Any], log: Any = None) -> Any:
        """Calls the function with what make() has made. `log`: where what it logs goes."""
        set_target(log)
        return function(self._executable)

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], log: Any = None) -> Any:
        """Calls the function. `log`: where what it logs goes."""
        set_target(log)
        return function(*args, **kwargs)


class Server:
    """An actor with a server beside it."""

    def start(self, rank: int, common: dict[str, str]) -> None:
        """Starts the server of this rank."""
        start_services(None, [rank], common, 0)
