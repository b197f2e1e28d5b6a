"""The steps of a run, in their order: what tells most comes first, since time may run out.

Plan(steps, here, site, fake).run()
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

from . import driver, machine, nccl, report
from .ask import ask
from .goals import verdicts
from .site import launcher, why_no_compiler
from .steps import DECLINED, FAILED, Steps

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
# Steps of frameworks, and how many workers each has.
_BENCHMARKS = {"benchmark_1": 1, "benchmark_2": 2}
_JAX = {"jax_1": 1, "jax_2": 2}


class Plan:
    """What is run on this machine. `fake`: on the simulated GPU, whose figures mean nothing."""

    def __init__(self, steps: Steps, here: Path, site: Path, fake: bool) -> None:
        self._steps, self._here, self._site, self._fake = steps, here, site, fake
        self._small = ["--small"] if fake else []
        self._figures: dict[str, Any] = {}
        self._facts: dict[str, str] = {}

    def run(self) -> None:
        """All of it. What there is is reported, however it ends."""
        # First of all: a GPU that a step leaves ill tells nothing.
        self._facts = machine.gpu_facts(self._steps.environment, self._fake)
        try:
            self._run()
        finally:
            self._report()

    def _run(self) -> None:
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

    def _why_not(self, program: str) -> str:
        """Why this Python program cannot run here, as a step would; empty if it can, or if no time is left to ask: the
        step that asks is not begun then, and says so itself."""
        left = self._steps.left()
        if left < 1:
            return ""
        # What hangs, hangs in each question: together they may take no longer than the steps.
        return ask([sys.executable, "-c", program], self._steps.environment, min(60, left)).why_not

    @functools.cached_property
    def _no_numpy(self) -> str:
        return "no NumPy" if self._why_not("import numpy") else ""

    def _job(self, name: str, workers: int, servers: int, scenarios: str, variables: dict[str, str]) -> None:
        if not self._steps.wanted(name):
            return
        if self._no_numpy:
            self._steps.decline(name, self._no_numpy)
            return
        command = [*launcher(self._site, workers, servers), sys.executable, "-m", "gpu.values", scenarios]
        self._steps.run(name, command, 60, **variables)

    def _rate(self, name: str, workers: int, servers: int, variables: dict[str, str]) -> None:
        if not self._steps.wanted(name):
            return
        if self._no_numpy:
            self._steps.decline(name, self._no_numpy)
            return
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
        found, gpus = nccl.find(self._here), driver.count()
        variables, why_not = nccl.plan(found, gpus)
        if why_not or self._no_numpy:
            for name in ("job_nccl", "job_nccl_bits", "rate_two_nccl"):
                self._steps.decline(name, why_not or self._no_numpy)
            return
        assert found is not None
        self._job("job_nccl", 2, 0, "nccl,thousand,streams", variables)
        # Three are more to go wrong; they may share the only GPU, but not one of several.
        workers = min(3, gpus) if gpus > 1 else 3
        self._job("job_nccl_bits", workers, 0, "bits", {**variables, "BYTEPS_DETERMINISTIC": "1"})
        for name in ("job_nccl", "job_nccl_bits"):
            said = self._log(name)
            why = re.search(r"are reduced in the memory of the host: (.*)", said)
            if why and re.search("built without its kernels|the kernels of this plugin need a driver", why[1]):
                self._steps.decline(f"{name}_way", f"the values are right, but the host has folded them: {why[1]}")
            elif why:
                self._steps.add(f"{name}_way", f"the tensors went through the host: {why[1]}", kind=FAILED)
        if self._steps.wanted("job_nccl"):
            lines = self._log("job_nccl").splitlines()
            used = [line.split("NCCL used: ")[1] for line in lines if "NCCL used: " in line]
            self._figures["nccl"] = used[0] if used else f"{found.version} was asked for; the job did not get there"
        self._rate("rate_two_nccl", 2, 0, variables)

    def _log(self, name: str) -> str:
        """What a step has said; nothing if it was not run."""
        log = self._steps.out / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def frameworks(self) -> None:
        """What needs the extension of byteps: PyTorch and JAX."""
        steps, site = self._steps, self._site
        built = [sys.executable, "-m", "gpu.site", "extension", str(site), str(self._here / "src")]
        missing = why_no_compiler()
        if missing:
            steps.decline("extension", missing)
            # That of the wheel is for one version of Python, which may be this one.
            if self._why_not("import byteps"):
                for name in ("import", "torch_values", "torch_expandable", *_BENCHMARKS, *_JAX):
                    steps.decline(name, f"no extension of byteps for this Python: {missing}")
                return
        else:
            steps.run("extension", built, 240)
        steps.run("import", [sys.executable, "-c", "import byteps; print(byteps.__file__)"], 30)
        module = [sys.executable, "-m", "gpu.torch_values"]
        steps.run("torch_values", [*launcher(site, 2), *module], 90)
        pieces = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        steps.run("torch_expandable", [*launcher(site, 2, 1), *module], 90, BYTEPS_FORCE_DISTRIBUTED="1", **pieces)
        self._benchmark()
        self._jax()

    def _benchmark(self) -> None:
        if not any(self._steps.wanted(name) for name in _BENCHMARKS):
            return
        has_cuda = "import sys, torch; torch.cuda.is_available() or sys.exit('torch.cuda.is_available() is False')"
        # On the host's processors it would take minutes; the simulated GPU is none of PyTorch's.
        missing = "the GPU is simulated" if self._fake else self._why_not(has_cuda)
        benchmark = [str(self._here / "examples" / "synthetic_benchmark.py"), "--num-iters", "3"]
        for name, workers in _BENCHMARKS.items():
            if missing:
                self._steps.decline(name, f"no PyTorch with CUDA: {missing}")
                continue
            command = [*launcher(self._site, workers), sys.executable, *benchmark]
            self._steps.run(name, command, 150)

    def _jax(self) -> None:
        steps = self._steps
        if not any(steps.wanted(name) for name in _JAX):
            return
        # Two workers may have one GPU, which JAX takes whole otherwise.
        steps.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        missing = self._why_not("import jax; jax.devices('cuda')")
        if missing:
            print(f"gpu_check: no JAX with CUDA here, so no step of it: {missing}")
            return
        for name, workers in _JAX.items():
            command = [*launcher(self._site, workers), sys.executable, "-m", "gpu.jax_values"]
            steps.run(name, command, 120)

    def _report(self) -> None:
        """The goals as steps, and results.md."""
        judged = verdicts(self._figures)
        for verdict in judged:
            if not self._steps.wanted(verdict.goal.name):
                continue
            if verdict.ratio is None:
                self._steps.add(verdict.goal.name, verdict.line(), kind=DECLINED)
            else:
                self._steps.judge(verdict.goal.name, verdict.line(), verdict.met)
        # There is a report, and in time, also where PyTorch hangs and has taken all of it.
        limit = min(60, max(5, self._steps.left()))
        facts = {**self._facts, **machine.describe(self._here, self._steps.environment, limit)}
        if "nccl" in self._figures:
            facts["NCCL that the job has used"] = self._figures["nccl"]
        text = report.text(facts, self._figures, judged, self._steps.rows)
        (self._steps.out / "results.md").write_text(text)
