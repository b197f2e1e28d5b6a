"""What a report says of the machine: facts that a reader needs to compare figures, and no names.

facts = describe(packed, environment)
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from . import driver, nccl

_TORCH = "import torch;print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())))"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _system() -> str:
    try:
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.system()


def _kernel_driver() -> str:
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


def _said(command: list[str], environment: Mapping[str, str]) -> str:
    """What a program prints, or an empty text."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _link(pci: str) -> str:
    """Of the first GPU's place on the bus."""
    folder = Path("/sys/bus/pci/devices") / pci.lower()[-12:]
    try:
        speed, width = ((folder / name).read_text().strip() for name in ("max_link_speed", "max_link_width"))
    except OSError:
        return "unknown"
    return f"{speed}, x{width}"


def describe(packed: Path, environment: Mapping[str, str], fake: bool) -> dict[str, str]:
    """In the order in which they are shown."""
    gpu, count = driver.Gpu(0), driver.count()
    found = nccl.find(packed)
    torch = _said([sys.executable, "-c", _TORCH], environment).split()
    simulated = " (simulated: no figure means anything)" if fake else ""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "GPU": f"{count} x {gpu.name()}, {gpu.total_memory() / 2**30:.0f} GiB{simulated}",
        "bus of the first GPU": _link(gpu.pci()),
        "driver": f"{_kernel_driver()}, CUDA {driver.version()}",
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores for this run",
        "system": f"{_system()}, Linux {platform.release()}",
        "Python": platform.python_version(),
        "PyTorch": f"{torch[0]}, CUDA {torch[1]}, NCCL {torch[2]}" if len(torch) == 3 else "none, or without CUDA",
        "NCCL for BytePS": f"{found.version}, {found.path}" if found else "none was found",
    }
