"""Which NCCL there is, and whether several ranks may use one GPU.

    found = find(HERE)                     # the newest, or None
    variables, why_not = plan(found, gpus=1)

Ranks may share a GPU from NCCL 2.30 on (NCCL_MULTI_RANK_GPU_ENABLE, which NVIDIA calls experimental).
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

LIBRARY = "libnccl.so.2"
SHARES_FROM = 23000
OLDEST = 21800  # that the plugin takes
# On one GPU. Each rank's blocks must fit on it beside the others', or they wait for each other for ever.
ON_ONE_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
    "NCCL_ALGO": "RING",
}


@dataclasses.dataclass(frozen=True)
class Nccl:
    """One that can be loaded."""

    number: int
    path: Path

    @property
    def version(self) -> str:
        """As people write it."""
        return f"{self.number // 10000}.{self.number // 100 % 100}.{self.number % 100}"

    @property
    def home(self) -> str:
        """For BYTEPS_NCCL_HOME."""
        return str(self.path.parent.parent)


def version_of(path: Path) -> int:
    """By a process of its own: a library that is loaded stays. 0: it cannot be loaded."""
    program = (
        "import ctypes, sys; number = ctypes.c_int(0); "
        "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number)); print(number.value)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return 0
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0


def candidates(packed: Path) -> list[Path]:
    """Files of that name, where they usually are."""
    homes = [Path(os.environ["BYTEPS_NCCL_HOME"])] if os.environ.get("BYTEPS_NCCL_HOME") else []
    homes += [packed / "nccl", Path("/usr/local/nccl"), *(Path(each) / "nvidia" / "nccl" for each in sys.path if each)]
    files = [home / "lib" / LIBRARY for home in homes]
    files += [Path(folder) / LIBRARY for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64")]
    return [file for file in dict.fromkeys(files) if file.exists()]


def find(packed: Path, places: list[Path] | None = None) -> Nccl | None:
    """The newest: it is the one that may let ranks share a GPU."""
    files = candidates(packed) if places is None else places
    all_of_them = [Nccl(version_of(file), file) for file in files]
    usable = [each for each in all_of_them if each.number >= OLDEST]
    return max(usable, key=lambda each: each.number) if usable else None


def plan(found: Nccl | None, gpus: int) -> tuple[dict[str, str], str]:
    """The variables of a job of two ranks, and why there can be none."""
    if found is None:
        return {}, "no NCCL 2.18 or later was found, by BYTEPS_NCCL_HOME, in this Python, or in the loader's folders"
    # The plugin takes BYTEPS_NCCL_HOME/lib: an NCCL elsewhere is found by the loader.
    variables = {"BYTEPS_NCCL": "1", "BYTEPS_LOG_LEVEL": "info"}
    if found.path.parent.name == "lib":
        variables["BYTEPS_NCCL_HOME"] = found.home
    if gpus > 1:
        return variables, ""
    if found.number < SHARES_FROM:
        return {}, (
            f"there is one GPU, and NCCL {found.version} ({found.path}) takes one rank of a GPU: "
            "2.30 or later lets ranks share it"
        )
    return {**variables, **ON_ONE_GPU}, ""
