"""The steps of a run, in their order: what tells most comes first, since time may run out.

Plan(steps, here, site, fake).run()
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import driver, machine, nccl, report
from .goals import verdicts
from .site import launcher
from .steps import FAILED, Steps

# Jobs whose results are checked: workers, servers, scenarios, variables.
_ALL = "sums,thousand,streams,capture"
JOBS: dict[str, tuple[int, int, str, dict[str, str]]] = {
    "job_alone": (1, 0, _ALL, {}),
    "job_shm": (1, 1, _ALL, {}),
    "job_tcp": (1, 1, _ALL, {"BYTEPS_SHM": "0"}),
    "job_two": (2, 0, _ALL, {"BYTEPS_NCCL": "0"}),
    "job_two_servers": (2, 2, _ALL, {"BYTEPS_FORCE_DISTRIBUTED": "1"}),
    "job_cpu_beside_gpu": (2, 1, "sums,thousand,streams", {"BYTEPS_FORCE_DISTRIBUTED": "1", "GPU_CHECK_CPU_RANK": "1"}),
    "job_bits": (3, 1, "bits", {"BYTEPS_DETERMINISTIC": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}),
    "job_bits_local": (3, 0, "bits", {"BYTEPS_DETERMINISTIC": "1", "BYTEPS_NCCL": "0"}),
    "job_casts": (2, 1, "cast", {"BYTEPS_FORCE_DISTRIBUTED": "1"}),
    "job_cast_alone": (1, 0, "cast", {}),
    "job_mapped": (1, 1, "mapped", {}),
}
# Jobs that are measured: workers, servers, variables.
RATES: dict[str, tuple[int, int, dict[str, str]]] = {
    # A worker alone: its chain of stages is the device stage and one that answers at once, without a copy.
    "rate_null": (1, 0, {}),
    "rate_server": (1, 1, {}),
    "rate_two": (2, 0, {"BYTEPS_NCCL": "0"}),
    "rate_two_server": (2, 1, {"BYTEPS_FORCE_DISTRIBUTED": "1"}),
    "rate_server_tcp": (1, 1, {"BYTEPS_SHM": "0"}),
}


class Plan:
    """What is run on this machine. `fake`: on the simulated GPU, whose figures mean nothing."""

    def __init__(self, steps: Steps, here: Path, site: Path, fake: bool) -> None:
        self._steps, self._here, self._site, self._fake = steps, here, site, fake
        self._small = ["--small"] if fake else []
        self._figures: dict[str, Any] = {}

    def run(self) -> None:
        """All of it."""
        steps = self._steps
        told = "uname -a; ldd --version | head -1; nvidia-smi; nvidia-smi topo -m; lscpu"
        steps.run("machine", ["bash", "-c", told], 30)
        self._measure("copies_loop", [sys.executable, "-m", "gpu.copies", "loop"], 45)
        self._measure("copies_two", [sys.executable, "-m", "gpu.copies", "two"], 30)
        for name, (workers, servers, scenarios, variables) in JOBS.items():
            self._job(name, workers, servers, scenarios, variables)
        for name, (workers, servers, variables) in RATES.items():
            self._rate(name, workers, servers, variables)
        self._measure("rate_gloo", [sys.executable, "-m", "gpu.gloo"], 60)
        self._nccl()
        self._measure("copies_table", [sys.executable, "-m", "gpu.copies", "table"], 45)
        steps.run("simulated", [str(self._here / "bin" / "collectives_test")], 60)
        steps.run("hardware", [str(self._here / "bin" / "hardware_test")], 120)
        self.frameworks()
        self._report()

    def _job(self, name: str, workers: int, servers: int, scenarios: str, variables: dict[str, str]) -> None:
        command = [*launcher(self._site, workers, servers), sys.executable, "-m", "gpu.values", scenarios]
        self._steps.run(name, command, 60, **variables)

    def _rate(self, name: str, workers: int, servers: int, variables: dict[str, str]) -> None:
        command = [*launcher(self._site, workers, servers), sys.executable, "-m", "gpu.rates"]
        self._measure(name, command, 60, **variables)

    def _measure(self, name: str, command: list[str], seconds: int, **variables: str) -> None:
        """A step that leaves figures."""
        file = self._steps.out / f"{name}.json"
        file.unlink(missing_ok=True)
        if not self._steps.run(name, [*command, "--out", str(file), *self._small], seconds, **variables):
            return
        if file.exists():
            self._figures[name] = json.loads(file.read_text())
        else:
            self._steps.add(f"{name}_figures", "there are none", kind=FAILED)

    def _nccl(self) -> None:
        """Of the GPUs among themselves; which NCCL it was is in the log and in the table."""
        if not (self._steps.wanted("job_nccl") or self._steps.wanted("job_nccl_bits")):
            return
        found = nccl.find(self._here)
        variables, why_not = nccl.plan(found, driver.count())
        if why_not:
            self._steps.decline("job_nccl", why_not)
            return
        assert found is not None
        self._job("job_nccl", 2, 0, "nccl,thousand,streams", variables)
        self._job("job_nccl_bits", 3, 0, "bits", {**variables, "BYTEPS_DETERMINISTIC": "1"})
        for name in ("job_nccl", "job_nccl_bits"):
            log = self._steps.out / f"{name}.log"
            said = log.read_text(errors="replace") if log.exists() else ""
            why = re.search(r"are reduced in the memory of the host: (.*)", said)
            if why and "built without its kernels" in why[1]:
                self._steps.decline(f"{name}_way", f"the values are right, but the host has folded them: {why[1]}")
            elif why:
                self._steps.add(f"{name}_way", f"the tensors went through the host: {why[1]}", kind=FAILED)
        if self._steps.wanted("job_nccl"):
            log = (self._steps.out / "job_nccl.log").read_text(errors="replace")
            used = [line.split("NCCL used: ")[1] for line in log.splitlines() if "NCCL used: " in line]
            self._figures["nccl"] = used[0] if used else f"{found.version} was asked for; the job did not get there"
        self._rate("rate_two_nccl", 2, 0, variables)

    def frameworks(self) -> None:
        """What needs the extension of byteps: PyTorch and JAX."""
        steps, site = self._steps, self._site
        built = [sys.executable, "-m", "gpu.site", "extension", str(site), str(self._here / "src")]
        if steps.wanted("extension"):
            steps.run("extension", built, 240)
        steps.run("import", [sys.executable, "-c", "import byteps; print(byteps.__file__)"], 30)
        module = [sys.executable, "-m", "gpu.torch_values"]
        steps.run("torch_values", [*launcher(site, 2), *module], 90)
        pieces = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        steps.run("torch_expandable", [*launcher(site, 2, 1), *module], 90, BYTEPS_FORCE_DISTRIBUTED="1", **pieces)
        self._benchmark()
        self._jax()

    def _benchmark(self) -> None:
        try:
            import torch  # noqa: F401  the benchmark is of PyTorch
        except ImportError:
            print("gpu_check: no PyTorch here, so no benchmark")
            return
        benchmark = [str(self._here / "examples" / "synthetic_benchmark.py"), "--num-iters", "3"]
        for workers in (1, 2):
            command = [*launcher(self._site, workers), sys.executable, *benchmark]
            self._steps.run(f"benchmark_{workers}", command, 150)

    def _jax(self) -> None:
        steps = self._steps
        if not (steps.wanted("jax_1") or steps.wanted("jax_2")):
            return
        # Two workers may have one GPU, which JAX takes whole otherwise.
        steps.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        missing = self._why_no_jax()
        if missing:
            print(f"gpu_check: no JAX with CUDA here, so no step of it: {missing}")
            return
        for workers in (1, 2):
            command = [*launcher(self._site, workers), sys.executable, "-m", "gpu.jax_values"]
            steps.run(f"jax_{workers}", command, 120)

    def _why_no_jax(self) -> str:
        """Why no program of JAX can run on a GPU here; empty if one can."""
        probe = [sys.executable, "-c", "import jax; jax.devices('cuda')"]
        try:
            done = subprocess.run(
                probe, env=self._steps.environment, capture_output=True, text=True, timeout=60, check=False
            )
        except subprocess.TimeoutExpired:
            return "jax.devices('cuda') has not ended within 60 s"
        said = done.stderr.strip().splitlines()
        return "" if done.returncode == 0 else said[-1] if said else f"it ended with {done.returncode}"

    def _report(self) -> None:
        """The goals as steps, and results.md."""
        judged = verdicts(self._figures)
        for verdict in judged:
            if self._steps.wanted(verdict.goal.name):
                self._steps.judge(verdict.goal.name, verdict.line(), verdict.met)
        facts = machine.describe(self._here, self._steps.environment, self._fake)
        if "nccl" in self._figures:
            facts["NCCL that the job has used"] = self._figures["nccl"]
        text = report.text(facts, self._figures, judged, self._steps.rows)
        (self._steps.out / "results.md").write_text(text)
