"""The workers of one host: their variables, cores and folders. Used by a whole job and by the role `worker` alike."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from . import affinity
from .child import ChildSpec, Role
from .environment import Environment
from .failure import LaunchError
from .gpus import visible_gpu
from .network_card import near_interface
from .topology import cpu_list


def local_workers(
    command: Sequence[str],
    environment: Environment,
    variables: Mapping[str, str],
    plan: affinity.CorePlan,
    host: int | None = None,
    reads_stdin: bool = True,
) -> list[ChildSpec]:
    """The workers of this host, each with `variables` and its own place in `plan`.

    They are called "worker <local rank>", or, with several hosts, "worker <host>.<local rank>": the rank in the job
    depends on how many workers the hosts before this one have. With `reads_stdin` the first one has our standard input.
    """
    count = len(plan.workers)
    # On a host that is the whole job no network is used.
    root = variables.get("DMLC_PS_ROOT_URI") if variables.get("DMLC_NUM_WORKER", "1") != "1" else None
    specs = []
    for local_rank in range(count):
        own = dict(variables)
        own["DMLC_ROLE"] = "worker"
        own["BYTEPS_LOCAL_RANK"] = str(local_rank)
        own["BYTEPS_LOCAL_SIZE"] = str(count)
        own.setdefault("PYTHONUNBUFFERED", "1")
        threads = affinity.threads(plan, local_rank)
        if threads is not None:
            own.setdefault("OMP_NUM_THREADS", str(threads))
        cpus, io = plan.workers[local_rank], plan.io[local_rank]
        if io is not None:
            own["BYTEPS_IO_CPU_CORES"] = cpu_list(io)
        interface = near_interface(environment, root, plan.nodes, cpus)
        if interface is not None:
            own["DMLC_INTERFACE"] = interface
        gpu = visible_gpu(environment, local_rank, count)
        if gpu is not None:
            own["CUDA_VISIBLE_DEVICES"] = gpu
        if environment.flag("BYTEPS_TRACE_ON"):
            own["BYTEPS_TRACE_DIR"] = _trace_folder(environment, local_rank)
        specs.append(
            ChildSpec(
                name=f"worker {local_rank}" if host is None else f"worker {host}.{local_rank}",
                role=Role.WORKER,
                command=list(command),
                variables=own,
                cpus=cpus,
                reads_stdin=reads_stdin and local_rank == 0,
            )
        )
    return specs


def _trace_folder(environment: Environment, local_rank: int) -> str:
    """Makes the folder into which a worker writes its timeline; returns the one above, which all workers share."""
    folder = pathlib.Path(environment.text("BYTEPS_TRACE_DIR") or "trace").resolve()
    try:
        (folder / str(local_rank)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"BYTEPS_TRACE_DIR={folder}: cannot make a folder there: {error.strerror}") from None
    return str(folder)
