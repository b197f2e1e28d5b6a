"""Open MPI's mpirun, PRRTE, and `srun --mpi=pmix`: PMIX_RANK and PMIX_NAMESPACE.

Where the library of PMIx does not load the processes meet in a folder that all hosts see.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..failure import LaunchError
from .exchange import Exchange, FencedExchange, LastingExchange
from .place import Surroundings, number, this_host
from .pmix import PmixStore, load
from .shared_folder import SharedFolder, rendezvous_folder

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
    return Surroundings(_NAME, rank, size, this_host(), _exchange(variables, rank, size))


def _exchange(variables: Mapping[str, str], rank: int, size: int) -> Exchange:
    if size > 1:
        try:
            load(variables)
        except LaunchError as error:
            if variables.get("BYTEPS_PMIX_LIBRARY"):
                raise
            restart = variables.get("SLURM_RESTART_COUNT", "0")
            folder = rendezvous_folder(variables, f"pmix-{variables['PMIX_NAMESPACE']}-{restart}")
            return LastingExchange(SharedFolder(folder, rank, size), f"{folder}, since {error}")
    return FencedExchange(PmixStore(variables, rank, size))
