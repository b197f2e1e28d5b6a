"""The DMLC_* and BYTEPS_* variables, read strictly.

    environment = Environment(os.environ)
    workers = environment.integer("DMLC_NUM_WORKER", minimum=1)

An empty variable counts as unset (templates of container systems produce them). A value that does not parse is a
LaunchError that names the variable and the value, never a zero.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Mapping

from .failure import LaunchError

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

ROLES = ("scheduler", "server", "worker")


# What places a single process in a job: of no use to several, and left over from somewhere else.
PLACES = (
    "BYTEPS_COORDINATOR_FD",
    "BYTEPS_FORCE_DISTRIBUTED",
    "BYTEPS_GLOBAL_RANK",
    "BYTEPS_JOB_ID",
    "BYTEPS_LINGER_FD",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
    "BYTEPS_ORDERED_HOSTS",
    "DMLC_NUM_SERVER",
    "DMLC_NUM_WORKER",
    "DMLC_PORT",
    "DMLC_PS_ROOT_PORT",
    "DMLC_PS_ROOT_URI",
    "DMLC_RANK",
    "DMLC_ROLE",
    "DMLC_WORKER_ID",
)

# What BYTEPS_LOCAL_SIZE may be, and --workers and --servers.
MOST_LOCAL_ROLES = 65536


class Environment:
    """A read-only view of a set of variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def variables(self) -> dict[str, str]:
        """A copy of all variables, to be changed and given to a process."""
        # Else libinfinipath, which libfabric may bring along, sets signal handlers (fabric_library.h of the plugins).
        return {"IPATH_NO_BACKTRACE": "1", **self._variables}

    def chosen(self, entries: Iterable[str]) -> dict[str, str]:
        """The variables that --env asks for: NAME=value, NAME:value (as BytePS's dist_launcher has it), or NAME: as it
        is here."""
        return dict(self._chosen(entry) for entry in entries)

    def _chosen(self, entry: str) -> tuple[str, str]:
        ends = [entry.index(sign) for sign in "=:" if sign in entry]
        name = entry[: min(ends)] if ends else entry
        if not name.isidentifier():
            raise LaunchError(f"--env {entry}: expected NAME=value, or NAME")
        if ends:
            return name, entry[min(ends) + 1 :]
        if name not in self._variables:
            raise LaunchError(f"--env {name}: there is no such variable here: --env {name}=value")
        return name, self._variables[name]

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None if unset or empty."""
        value = self._variables.get(name, "").strip()
        return value or None

    def integer(self, name: str, minimum: int | None = None, maximum: int | None = None) -> int | None:
        """The value as a whole number within bounds."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value, 10)
        except ValueError:
            raise LaunchError(f"{name}={value}: not a whole number") from None
        if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
            bounds = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            raise LaunchError(f"{name}={value}: out of range, expected {bounds}")
        return number

    def seconds(self, name: str) -> float | None:
        """The value as a duration: a number of seconds, or with a unit (ms, s, m, h)."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)?", value)
        if found is None:
            raise LaunchError(f"{name}={value}: expected a duration, such as 120 or 2m")
        return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[found[2]]

    def flag(self, name: str, default: bool = False) -> bool:
        """The value as yes or no: 0 or 1, true or false, yes or no, on or off, in any case."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise LaunchError(f"{name}={value}: expected 0 or 1")

    def role(self) -> str | None:
        """DMLC_ROLE in lower case."""
        value = self.text("DMLC_ROLE")
        if value is None:
            return None
        if value.lower() not in ROLES:
            raise LaunchError(f"DMLC_ROLE={value}: expected one of {', '.join(ROLES)}")
        return value.lower()

    def require(self, names: Iterable[str], purpose: str) -> None:
        """Raises LaunchError naming all of `names` that are unset."""
        missing = [name for name in names if self.text(name) is None]
        if missing:
            raise LaunchError(f"{purpose}: not set: {', '.join(missing)}")

    def local_workers(self) -> int:
        """How many workers run on this host: BYTEPS_LOCAL_SIZE, else the devices of NVIDIA_VISIBLE_DEVICES, else 1."""
        size = self.integer("BYTEPS_LOCAL_SIZE", minimum=1, maximum=MOST_LOCAL_ROLES)
        if size is not None:
            return size
        devices = self.text("NVIDIA_VISIBLE_DEVICES")
        if devices is None or devices.lower() in ("none", "void"):
            return 1
        if devices.lower() == "all":
            return max(1, _count_nvidia_devices())
        return sum(1 for device in devices.split(",") if device.strip()) or 1


def _count_nvidia_devices() -> int:
    return sum(1 for path in pathlib.Path("/dev").glob("nvidia*") if path.name[len("nvidia") :].isdigit())
