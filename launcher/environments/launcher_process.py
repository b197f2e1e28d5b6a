"""The process of another launcher that has started a worker: a worker that outlives it is of no use."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

# As /proc/PID/comm has them: mpirun and its daemons (that of Open MPI 5 becomes prterun), Hydra's, Slurm's.
_NAMES = (
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prte",
    "prted",
    "prterun",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "slurmstepd",
)
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclasses.dataclass(frozen=True)
class LauncherProcess:
    """The process that has started a worker, and what it has made of it: see Surroundings."""

    pid: int
    launcher: str
    rank: int


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
    return known or _is_torchrun(words.decode(errors="replace").split("\0"))


def _is_torchrun(words: Sequence[str]) -> bool:
    """Whether these words are `torchrun ...`, or Python with it. Its name somewhere else (a folder, an argument) says
    nothing: what is behind the script is for the script."""
    rest = iter(words)
    if _base(next(rest, "")) == "torchrun":
        return True
    for word in rest:
        if word.startswith("-") and word.endswith("m"):  # -m, -um
            return next(rest, "") in _TORCH_MODULES
        if word in ("-X", "-W"):
            next(rest, None)
        elif not word.startswith("-") or word == "-c":
            return _base(word) == "torchrun"
    return False


def _base(path: str) -> str:
    return path.rpartition("/")[2]
