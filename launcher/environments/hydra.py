"""MPICH's mpirun (Hydra), Intel MPI's, and `srun --mpi=pmi2`: PMI_RANK, PMI_SIZE, PMI_FD."""

from __future__ import annotations

from collections.abc import Mapping

from .exchange import FencedExchange
from .place import Surroundings, number, this_host
from .pmi import PmiStore

_NAME = "PMI (mpirun of MPICH, srun --mpi=pmi2)"


def detect(variables: Mapping[str, str]) -> Surroundings | None:
    """See environments.detect."""
    if not all(name in variables for name in ("PMI_RANK", "PMI_SIZE", "PMI_FD")):
        return None
    rank, size = number(variables, "PMI_RANK", _NAME), number(variables, "PMI_SIZE", _NAME)
    store = PmiStore(number(variables, "PMI_FD", _NAME), rank, size)
    return Surroundings(_NAME, rank, size, this_host(), FencedExchange(store))
