"""Open MPI's mpirun, PRRTE, and `srun --mpi=pmix`: PMIX_RANK and PMIX_NAMESPACE."""

from __future__ import annotations

from collections.abc import Mapping

from ..failure import LaunchError
from .exchange import FencedExchange
from .place import Surroundings, number, this_host
from .pmix import PmixStore

_NAME = "PMIx (mpirun of Open MPI, srun --mpi=pmix)"
_SIZES = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def detect(variables: Mapping[str, str]) -> Surroundings | None:
    """See environments.detect."""
    if "PMIX_RANK" not in variables or "PMIX_NAMESPACE" not in variables:
        return None
    rank = number(variables, "PMIX_RANK", _NAME)
    known = next((name for name in _SIZES if name in variables), None)
    if known is None:
        raise LaunchError(f"PMIx has started this process, but none of {', '.join(_SIZES)} says how many there are")
    size = number(variables, known, _NAME)
    return Surroundings(_NAME, rank, size, this_host(), FencedExchange(PmixStore(variables, rank, size)))
