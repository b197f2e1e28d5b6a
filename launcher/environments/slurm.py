"""A task of Slurm's srun, without PMI: the variables say who it is; the tasks meet in a folder that all hosts see."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from ..failure import LaunchError
from . import shared_folder
from .exchange import LastingExchange
from .place import Surroundings, number, this_host

_NAME = "Slurm"


def detect(variables: Mapping[str, str]) -> Surroundings | None:
    """See environments.detect. A batch script has no step: it is not one of several tasks."""
    if "SLURM_PROCID" not in variables or "SLURM_STEP_ID" not in variables:
        return None
    rank = number(variables, "SLURM_PROCID", _NAME)
    known = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    size = number(variables, known, _NAME)
    folder = shared_folder.SharedFolder(rendezvous_folder(variables), rank, size)
    node = variables.get("SLURMD_NODENAME", "")
    exchange = LastingExchange(folder, node=node, nodes=lambda: _nodes(variables))
    return Surroundings(_NAME, rank, size, this_host(), exchange)


def _nodes(variables: Mapping[str, str]) -> list[str]:
    """The nodes of this step; empty: not known."""
    from ..remote.slurm_allocation import expand_nodes  # here: only an error needs it

    try:
        return expand_nodes(variables.get("SLURM_STEP_NODELIST", ""))
    except LaunchError:
        return []


def rendezvous_folder(variables: Mapping[str, str]) -> pathlib.Path:
    """Where the tasks of this step meet; a job that was requeued has another one."""
    job, step = variables.get("SLURM_JOB_ID", "0"), variables["SLURM_STEP_ID"]
    restart = variables.get("SLURM_RESTART_COUNT", "0")
    return shared_folder.rendezvous_folder(variables, f"slurm-{job}-{step}-{restart}")
