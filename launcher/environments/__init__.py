"""What has started us, and how the processes that it started find each other: one file per environment.

    place            who a process is, and what the job around it looks like
    torchrun         torchrun and torch.distributed.run
    open_mpi         Open MPI's mpirun, and `srun --mpi=pmix`: PMIx
    hydra            MPICH's mpirun (Hydra), and `srun --mpi=pmi2`: PMI's wire protocol
    slurm            srun without either
    torch_variables  programs of torch.distributed that something else has started
    exchange         what each environment offers: every process gives something, rank 0 answers each
    pmi, pmix, torch_store, shared_folder    how they do it
    meeting          the exchange that makes a job: hosts, the coordinator's address, the token
    silence          how soon a silent host is given up
    addresses        by which address the others can reach a host
    companion        the coordinator and servers beside a worker, in a process of their own
    launcher_process    what has started a worker: its end is the worker's
    launched_workers    who ends with it

`bps.init()` uses it where DMLC_* are not set (byteps/surroundings.py), and `bpslaunch` within a Slurm job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..failure import LaunchError

if TYPE_CHECKING:
    from .place import Surroundings


def detect(variables: Mapping[str, str], launchers_alone: bool = False) -> Surroundings | None:
    """What has started this process, if it is one of several of a job; None if nothing known has. LaunchError if its
    variables make no sense. `launchers_alone`: torch_variables do not count; elsewhere than in a program of PyTorch
    they may mean anything."""
    # Here: a launch that needs none of them does not load them.
    from . import hydra, open_mpi, slurm, torch_variables, torchrun

    # The first that is there counts. torchrun may run within a task of Slurm or of MPI, MPI's ranks within Slurm's, and
    # scripts set torch's variables from those of any of them.
    kinds = (torchrun, open_mpi, hydra, slurm)
    for kind in kinds if launchers_alone else (*kinds, torch_variables):
        found = kind.detect(variables)
        if found is not None:
            return found
    unknown = [f"{name}={variables[name]}" for name in variables if _is_size(name) and variables[name] not in ("", "1")]
    if unknown:
        raise LaunchError(
            f"an MPI that is not known here has started this process: {', '.join(sorted(unknown))}, but neither PMIx, "
            "PMI_FD nor Slurm; bpslaunch, or DMLC_* by hand, can start it (docs/launch/mpi.md)"
        )
    return None


def _is_size(name: str) -> bool:
    """Whether a variable is what launchers of MPI call the number of their ranks: Open MPI, MVAPICH, and others."""
    return name == "PMI_SIZE" or name.endswith("_COMM_WORLD_SIZE")
