"""The process of another launcher that has started a worker: a worker that outlives it is of no use."""

from __future__ import annotations

import pathlib

# As /proc/PID/comm has them: mpirun and its daemons, Hydra's, Slurm's.
_NAMES = (
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prte",
    "prted",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "slurmstepd",
)


def is_launcher(pid: int) -> bool:
    """Whether this process is known to start workers and to stay until they have ended. A shell is not."""
    if pid <= 1:
        return False
    try:
        name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # mpirun.openmpi, mpiexec.hydra and their like
    known = name.partition(".")[0] in _NAMES or name.startswith("pt_elastic")
    return known or b"torchrun" in words or b"torch.distributed" in words
