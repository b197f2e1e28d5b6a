"""What users of Horovod ask about the library underneath: the answers of BytePS.

BytePS carries tensors by its own transports. Neither MPI nor Gloo nor NCCL is in between, so the questions for them are
answered with no; programs take their path for "not built" then, which is the right one.
"""

from __future__ import annotations

import os

from byteps.basics import info


def cross_size() -> int:
    """The number of hosts. Raises ValueError before init()."""
    return 1 if info().size == info().local_size else int(os.environ.get("DMLC_NUM_WORKER") or 1)


def cross_rank() -> int:
    """The number of this host, 0 .. cross_size()-1. Raises ValueError before init()."""
    return 0 if info().size == info().local_size else int(os.environ.get("DMLC_WORKER_ID") or 0)


def is_homogeneous() -> bool:
    """Whether all hosts have as many workers as this one, as far as this one can tell."""
    return info().size == info().local_size * cross_size()


def mpi_threads_supported() -> bool:
    """False: there is no MPI. Raises ValueError before init(), as in Horovod."""
    info()
    return False


def mpi_enabled() -> bool:
    """False: there is no MPI."""
    return False


def mpi_built() -> bool:
    """False: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """False: there is no Gloo."""
    return False


def gloo_built() -> bool:
    """False: there is no Gloo."""
    return False


def nccl_built() -> int:
    """0: there is no NCCL."""
    return 0


def ddl_built() -> bool:
    """False: there is no DDL."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL."""
    return False


def cuda_built() -> bool:
    """False: tensors on a device travel through host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors on a device travel through host memory."""
    return False
