"""What has started this process, where that was not bpslaunch: torchrun, mpirun, srun.

With it `torchrun --nproc-per-node 4 train.py` and `mpirun -n 8 python train.py` work as they are: init() finds rank,
size and the others, rank 0 starts the coordinator beside itself, and the first worker of each host its servers. Where
variables have given the ranks (DMLC_*, BYTEPS_LOCAL_SIZE, ...) that counts. BYTEPS_DETECT_LAUNCHER=0 looks
at nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

from byteps.errors import FailedPreconditionError, StatusCode

# Set by bpslaunch, or by hand: then the place of this process is known.
_PLACED = (
    "DMLC_ROLE",
    "DMLC_NUM_WORKER",
    "DMLC_WORKER_ID",
    "DMLC_PS_ROOT_URI",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
)
# Of each launcher one that is always there: without any of them nothing is loaded.
_MARKS = ("TORCHELASTIC_RUN_ID", "PMI_FD", "PMIX_NAMESPACE", "SLURM_STEP_ID")
_DEFAULT_SECONDS = 120.0
_NO = ("0", "false", "no", "off")


def join(timeout: float | None) -> Any:
    """Finds the others that were started with this process, and sets DMLC_* and BYTEPS_* as bpslaunch does.

    Returns:
        What is to be closed once the session is open; None if there is nothing.

    Raises:
        FailedPreconditionError: a launcher is there, but the processes cannot find each other.
    """
    variables = os.environ
    if any(variables.get(name) for name in _PLACED) or not any(variables.get(name) for name in _MARKS):
        return None
    if variables.get("BYTEPS_DETECT_LAUNCHER", "1").strip().lower() in _NO:
        return None
    from byteps.launcher.environment import Environment
    from byteps.launcher.environments import detect
    from byteps.launcher.environments.meeting import meet
    from byteps.launcher.failure import LaunchError

    try:
        found = detect(variables)
        if found is None or found.size == 1:
            return None
        seconds = timeout or Environment(variables).seconds("BYTEPS_START_TIMEOUT") or _DEFAULT_SECONDS
        own, meeting = meet(found, variables, time.monotonic() + seconds)
    except LaunchError as error:
        raise FailedPreconditionError(
            f"{error} (BYTEPS_DETECT_LAUNCHER=0: be alone)", StatusCode.FAILED_PRECONDITION
        ) from None
    variables.update(own)
    return meeting
