"""In which way a job is launched, and which options count there.

An option that would change nothing is an error: the user expects something of it.
"""

from __future__ import annotations

import enum
from typing import Optional, Union

from .arguments import Arguments
from .environment import Environment
from .environments import detect
from .environments.place import Surroundings
from .failure import LaunchError
from .remote.slurm_allocation import Allocation, allocation
from .roles import is_started

# They say that a single role was meant when DMLC_ROLE is missing.
ROLE_VARIABLES = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")


class Way(enum.Enum):
    """Its value is what it is called in an error."""

    WORKERS = "DMLC_ROLE=worker"
    STARTED = "a worker that another bpslaunch has started"
    SERVICE = "DMLC_ROLE=scheduler or server, where bpslaunch becomes byteps_server"
    HOSTS = "several hosts (--hosts, --hostfile)"
    ALLOCATION = "an allocation of Slurm"
    TASK = "a task of srun, mpirun or torchrun"
    JOB = "a whole job on this host"


_ALL = frozenset(Way)
_SUPERVISED = _ALL - {Way.SERVICE, Way.STARTED}
_SPREAD = frozenset({Way.HOSTS, Way.ALLOCATION})
_SSH = frozenset({Way.HOSTS})

# Options that do not count everywhere. (Those that name hosts make the way, and --workers makes two of them.)
_WAYS = {
    "--workers": frozenset({Way.JOB, Way.HOSTS}),
    "--servers": frozenset({Way.JOB, Way.TASK}) | _SPREAD,
    "--port": frozenset({Way.JOB}) | _SPREAD,
    "--scheduler-port": frozenset({Way.JOB}) | _SPREAD,
    "--colocate": frozenset({Way.WORKERS}) | _SPREAD,
    "--server-tasks": frozenset({Way.ALLOCATION}),
    "--interface": _ALL - {Way.JOB},
    "--output-dir": _SUPERVISED,
    "--kill-after": _SUPERVISED,
    "--timestamps": _SUPERVISED,
    "--host-names": _SPREAD,
    "--check=network": _SPREAD,
    "--directory": _SPREAD,
    "--remote-bpslaunch": _SPREAD,
    "--ssh-port": _SSH,
    "--ssh-user": _SSH,
    "--ssh-identity": _SSH,
    "--ssh-args": _SSH,
    "--scheduler-ssh-port": _SSH,
}
_INSTEAD = {
    ("--port", Way.TASK): "the coordinator takes a free one",
    ("--scheduler-port", Way.TASK): "the coordinator takes a free one",
    ("--colocate", Way.TASK): "each host has a server already; --servers N asks for another number",
    ("--colocate", Way.JOB): "--servers N says how many there are",
    ("--interface", Way.JOB): "its processes meet on the loopback interface",
}

Found = Optional[Union[Allocation, Surroundings]]


def way_of(arguments: Arguments, environment: Environment) -> tuple[Way, Found]:
    """How this job is launched; with Way.ALLOCATION and Way.TASK what was found. LaunchError if the variables of a
    launcher make no sense, or if an option does not count there."""
    way, found = _way_of(arguments, environment)
    role = environment.role()
    if role is not None and arguments.whole_job and way is not Way.HOSTS:
        raise LaunchError(
            f"DMLC_ROLE={role} asks for one role, --workers, --servers and --port for a whole job on this host: "
            "unset DMLC_ROLE or leave the options out"
        )
    for option, ways in _WAYS.items():
        if option in arguments.given and way not in ways:
            raise LaunchError(_sentence(option, ways, way))
    return way, found


def _way_of(arguments: Arguments, environment: Environment) -> tuple[Way, Found]:
    if arguments.remote.given:
        return Way.HOSTS, None
    role = environment.role()
    if role is not None:
        if role != "worker":
            return Way.SERVICE, None
        return (Way.STARTED if is_started(environment) else Way.WORKERS), None
    if not looks_around(arguments, environment):
        return Way.JOB, None
    allocated = allocation(environment.variables())
    if allocated is not None:
        return Way.ALLOCATION, allocated
    surroundings = None if arguments.check else detect(environment.variables(), launchers_alone=True)
    if surroundings is not None and surroundings.size > 1:
        return Way.TASK, surroundings
    return Way.JOB, None


def looks_around(arguments: Arguments, environment: Environment) -> bool:
    """Whether neither the command line nor a variable says where the job runs: what has started us may tell it."""
    return not (arguments.remote.given or environment.role() or arguments.workers is not None or _placed(environment))


def _placed(environment: Environment) -> bool:
    """Whether a variable says where this process belongs, or BytePS is not to look around."""
    if not environment.flag("BYTEPS_DETECT_LAUNCHER", default=True):
        return True
    return any(environment.text(name) is not None for name in ROLE_VARIABLES if name != "DMLC_NUM_SERVER")


def _sentence(option: str, ways: frozenset[Way], way: Way) -> str:
    text = f"{option} does not count with {way.value}"
    if len(ways) <= 3:
        *others, last = [each.value for each in Way if each in ways]
        text = f"{option} is for {' and '.join([', '.join(others), last] if others else [last])}, not for {way.value}"
    instead = _INSTEAD.get((option, way))
    return f"{text}: {'leave it out' if instead is None else instead}"
