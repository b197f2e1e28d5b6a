"""What has started this process, where that was not bpslaunch: torchrun, mpirun, srun, a program of torch.distributed.

With it `torchrun --nproc-per-node 4 train.py` and `mpirun -n 8 python train.py` work as they are: init() finds rank,
size and the others, rank 0 starts the coordinator beside itself, and the first worker of each host its servers. Where
variables have given the ranks (DMLC_*, BYTEPS_LOCAL_SIZE, ...) that counts. BYTEPS_DETECT_LAUNCHER=0 looks
at nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Mapping
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
# These count in programs of PyTorch alone: elsewhere they may mean anything.
_MARKS_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How many ranks there are, of other launchers of MPI: what is not known must not be alone without a word.
_SIZE, _SIZES = "PMI_SIZE", "_COMM_WORLD_SIZE"
_DEFAULT_SECONDS = 120.0
_NO = ("0", "false", "no", "off")
# What the library says of a host, or the network to it, that is gone.
_LOST = "silent for "
# The meeting of this process, and its number: at most one.
_OPEN: list[tuple[Any, int]] = []
# What told() was given.
_TOLD: contextvars.ContextVar[Any] = contextvars.ContextVar("byteps_told", default=None)


@contextlib.contextmanager
def told(said: Any) -> Iterator[None]:
    """init() inside of it knows what the program says itself of its processes.

    Args:
        said: Surroundings. They count where nothing has started this process that speaks of as many processes: the
            number is alike everywhere, so all decide alike.
    """
    token = _TOLD.set(said)
    try:
        yield
    finally:
        _TOLD.reset(token)


def join(timeout: float | None) -> Any:
    """Finds the others that were started with this process, and sets DMLC_* and BYTEPS_* as bpslaunch does.

    Returns:
        What is to be closed once the session is open; None if there is nothing.

    Raises:
        FailedPreconditionError: a launcher is there, but the processes cannot find each other.
    """
    variables = os.environ
    said, is_marked = _TOLD.get(), _is_marked(variables)
    if any(variables.get(name) for name in _PLACED) or not (is_marked or said):
        return None
    if variables.get("BYTEPS_DETECT_LAUNCHER", "1").strip().lower() in _NO:
        return None
    from byteps.launcher.environment import Environment
    from byteps.launcher.environments import detect
    from byteps.launcher.environments.exchange import NoExchange
    from byteps.launcher.environments.meeting import meet
    from byteps.launcher.failure import LaunchError

    try:
        found = detect(variables) if is_marked else None
        if said is not None and (found is None or found.size < said.size):
            found = said
        if found is None:
            return None
        if found.size == 1:
            if not _asks_for_servers(Environment(variables)):
                return None
            found = dataclasses.replace(found, exchange=NoExchange())
        seconds = timeout or Environment(variables).seconds("BYTEPS_START_TIMEOUT") or _DEFAULT_SECONDS
        own, meeting = meet(found, variables, time.monotonic() + seconds)
    except LaunchError as error:
        raise FailedPreconditionError(
            f"{error} (BYTEPS_DETECT_LAUNCHER=0: be alone)", StatusCode.FAILED_PRECONDITION
        ) from None
    variables.update(own)
    return meeting


def _is_marked(variables: Mapping[str, str]) -> bool:
    if any(name in _MARKS or name == _SIZE or name.endswith(_SIZES) for name, value in variables.items() if value):
        return True
    return "torch" in sys.modules and all(variables.get(name) for name in _MARKS_OF_TORCH)


def _asks_for_servers(environment: Any) -> bool:
    """Whether a process without others shall have servers beside it, as several have. `environment`: the launcher's."""
    return bool(environment.integer("DMLC_NUM_SERVER", minimum=0)) or environment.flag("BYTEPS_FORCE_DISTRIBUTED")


def stay(meeting: Any, holder: Any) -> None:
    """The session is open. Until the job is left the launcher can be told to end it.

    Args:
        meeting: of join()
        holder: of the session (byteps/session.py)
    """
    meeting.close()
    _OPEN[:] = [(meeting, os.getpid())]
    # Registered before what closes the session, it runs after that.
    atexit.register(_leave_at_exit, holder)


def leave() -> None:
    """The job was left in order: says goodbye to the launcher. Without this the end of a process that Python does not
    see (os._exit) is a crash for MPICH, which ends the others."""
    _end(0)


def _leave_at_exit(holder: Any) -> None:
    """Says goodbye, or, after a host was lost, lets the launcher end the job."""
    lost = _LOST in holder.last_error
    if lost:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    _end(1 if lost else 0)


def _end(code: int) -> None:
    for meeting, process in _OPEN:
        if os.getpid() == process:  # A forked child has not joined.
            meeting.end(code)
