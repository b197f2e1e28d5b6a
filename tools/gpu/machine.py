"""What a report says of the machine: facts that a reader needs to compare figures, and no names.

    gpus = gpu_facts(environment)              # before any step: one may leave a GPU ill
    facts = {**gpus, **describe(packed, environment, 60)}

The driver is asked by a process of its own (python3 -m gpu.machine), which it may refuse, or not return from.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import driver, nccl
from .ask import ask

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


def _link(pci: str) -> str:
    """Of the first GPU's place on the bus."""
    folder = Path("/sys/bus/pci/devices") / pci.lower()[-12:]
    try:
        speed, width = ((folder / name).read_text().strip() for name in ("max_link_speed", "max_link_width"))
    except OSError:
        return "unknown"
    return f"{speed}, x{width}"


def _gpus() -> dict[str, Any]:
    """What the driver says, in this process."""
    gpu = driver.Gpu(0)
    return {
        "count": driver.count(),
        "name": gpu.name(),
        "gib": round(gpu.total_memory() / 2**30),
        "pci": gpu.pci(),
        "cuda": driver.version(),
    }


def gpu_facts(environment: Mapping[str, str], fake: bool, limit: float = 30) -> dict[str, str]:
    """Of the GPUs and their driver, which has `limit` seconds to answer."""
    told = ask([sys.executable, "-m", "gpu.machine"], environment, limit)
    gpus = {} if told.why_not else json.loads(told.text)
    name = f"{gpus['count']} x {gpus['name']}, {gpus['gib']} GiB" if gpus else f"unknown: {told.why_not}"
    return {
        "GPU": name + (" (simulated: no figure means anything)" if fake else ""),
        "bus of the first GPU": _link(gpus["pci"]) if gpus else "unknown",
        "driver": f"{_kernel_driver()}, CUDA {gpus.get('cuda', 'unknown')}",
    }


def describe(packed: Path, environment: Mapping[str, str], limit: float) -> dict[str, str]:
    """Of everything else. PyTorch has `limit` seconds to say what it is."""
    found = nccl.find(packed)
    said = ask([sys.executable, "-c", _TORCH], environment, limit)
    torch, without = said.text.split(), f"none, or without CUDA: {said.why_not}"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores for this run",
        "system": f"{_system()}, Linux {platform.release()}",
        "Python": platform.python_version(),
        "PyTorch": f"{torch[0]}, CUDA {torch[1]}, NCCL {torch[2]}" if len(torch) == 3 else without,
        "NCCL for BytePS": f"{found.version}, {found.path}" if found else "none was found",
    }


if __name__ == "__main__":
    print(json.dumps(_gpus()))
