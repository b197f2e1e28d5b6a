"""bps_info and bps_perf as the wheel installs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A driver and an NCCL whose GPUs are simulated; tools/test keeps copies of its own.
STANDINS = Path(os.environ.get("GPU_STANDINS") or ROOT / "bazel-bin/tests/device_plugins/cuda")
_FOREIGN = ("BYTEPS_", "DMLC_")


def run(tmp_path: Path, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / name
    if not program.exists():
        pytest.skip(f"byteps is not installed for {sys.executable}")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)} | more
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=variables
    )


def test_bps_info_finds_what_lies_beside_it(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--check", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/byteps/lib/libbyteps.so: release " in done.stdout
    assert "/byteps/bin/byteps_server" in done.stdout
    for plugin in ("transport tcp", "transport shm", "transport verbs", "transport efa", "scheduler credit"):
        file = f"libbyteps_{plugin.replace(' ', '_')}.so"
        assert re.search(rf"^  {plugin} \d+\.\d+  /.+/byteps/lib/byteps/plugins/{file}$", done.stdout, re.M)
    assert "/.." not in done.stdout
    for transport in ("tcp", "shm", "local"):
        assert f"\n  {transport:<8}ok " in done.stdout


def test_bps_info_speaks_json(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--json", "--check", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["usable"] is True
    assert said["library"].endswith("/byteps/lib/libbyteps.so")
    assert {"tcp", "shm"} <= {plugin["name"] for plugin in said["plugins"] if plugin["usable"]}
    results = {each["name"]: each for each in said["check"]}
    assert {name for name, each in results.items() if each["result"] == "ok"} >= {"tcp", "shm", "local"}
    assert results["tcp"]["small_us"] > 0
    variables = {each["name"]: each for each in said["configuration"]}
    assert variables["BYTEPS_SHM"] == {"name": "BYTEPS_SHM", "value": "1", "source": "default", "acted_on": True}


def test_bps_info_shows_the_gpus(tmp_path: Path) -> None:
    """The driver, its devices, and NCCL with its version and path; of those that the tests have."""
    driver, nccl = STANDINS / "standin", STANDINS / "nccl"
    if not (driver / "libcuda.so.1").exists():
        pytest.skip(f"{driver}: the simulated driver is not built")
    done = run(tmp_path, "bps_info", LD_LIBRARY_PATH=str(driver), BYTEPS_NCCL_HOME=str(nccl))
    assert done.returncode == 0, done.stderr
    found = re.search(r"^  device cuda .+\n.+\n +contract (.+)$", done.stdout, re.M)
    assert found, done.stdout
    assert re.match(
        rf"[\d.]+: CUDA [\d.]+, libcuda\.so\.1, NCCL [\d.]+, {re.escape(str(nccl))}/lib/libnccl\.so\.2, "
        r"device 0: .+, \d+ MiB, compute [\d.]+, PCI \S+, device 1: ",
        found[1],
    )
    without = run(tmp_path, "bps_info", LD_LIBRARY_PATH=str(driver), BYTEPS_NCCL_HOME=str(tmp_path)).stdout
    assert str(tmp_path) in without and "NCCL 2" not in without


def test_bps_info_knows_the_models(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--placement", "vgg16")
    assert done.returncode == 0, done.stderr
    assert "VGG-16" in done.stdout


def test_bps_perf_measures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, "bps_perf", "--sizes", "4", "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 4
    assert run(tmp_path, "bps_perf", "--help").stdout.count("vgg16") > 1
