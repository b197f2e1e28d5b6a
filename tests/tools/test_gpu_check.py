"""gpu_check: what it says where there is no GPU, and how it runs its steps, on a packed folder made by hand."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "gpu_check"
LIMIT = 240


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """As `pack` makes it, of steps that do nothing."""
    folder = tmp_path / "packed"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "examples").mkdir()
    (folder / "examples" / "synthetic_benchmark.py").write_text("")
    native = folder / "src" / "frameworks" / "python" / "native"
    native.mkdir(parents=True)
    (native / "module.cc").write_text("int module_of_the_test = 1;\n")
    (folder / "src" / "frameworks" / "common").mkdir()
    (folder / "src" / "frameworks" / "common" / "library.cc").write_text("int library_of_the_test = 1;\n")
    with zipfile.ZipFile(folder / "byteps.whl", "w") as wheel:
        wheel.writestr("byteps/__init__.py", "")
        wheel.writestr("byteps/launcher/__init__.py", "")
        wheel.writestr("byteps/launcher/__main__.py", "")
    shutil.copy2(PROGRAM, folder / "gpu_check")
    step(folder, "collectives_test", "exit 0")
    step(folder, "hardware_test", "exit 0")
    return folder


def step(folder: Path, name: str, script: str) -> None:
    """Makes one of the programs that it runs."""
    program = folder / "bin" / name
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "gpu_check"), "run", str(folder / "out"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def table(folder: Path) -> dict[str, str]:
    rows = (folder / "out" / "steps.md").read_text().splitlines()[2:]
    return {name.strip(): result.strip() for _, name, result, *_ in (row.split("|") for row in rows)}


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_without_a_gpu_it_says_so_and_runs_nothing(packed: Path) -> None:
    done = run(packed)
    assert done.returncode == 77
    assert "no GPU here, so nothing was run: libcuda.so.1: cannot open" in done.stdout
    assert not (packed / "out").exists()


def test_all_steps_are_in_the_table_and_have_logs(packed: Path) -> None:
    done = run(packed, "--fake")
    assert done.returncode == 0, done.stdout + done.stderr
    results = table(packed)
    assert [results[name] for name in ("simulated", "hardware", "extension", "import")] == ["ok"] * 4
    assert "bin/hardware_test" in (packed / "out" / "hardware.log").read_text()


@pytest.mark.parametrize("has_cuda", [True, False])
def test_jax_is_checked_where_it_has_a_gpu(packed: Path, has_cuda: bool) -> None:
    devices = "return [kind]" if has_cuda else "raise RuntimeError('Unknown backend cuda')"
    with zipfile.ZipFile(packed / "byteps.whl", "a") as wheel:
        wheel.writestr("jax/__init__.py", f"def devices(kind):\n    {devices}\n")
    done = run(packed, "--fake")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {name: result for name, result in table(packed).items() if name.startswith("jax")}
    if has_cuda:
        assert steps == {"jax_1": "ok", "jax_2": "ok"}
        assert "jax_step.py" in (packed / "out" / "jax_2.log").read_text()
    else:
        assert steps == {}
        assert "no JAX with CUDA here, so no step of it: RuntimeError: Unknown backend cuda" in done.stdout


def test_a_step_that_fails_is_a_failure_of_the_whole(packed: Path) -> None:
    step(packed, "hardware_test", "echo what is wrong; exit 3")
    assert run(packed, "--fake").returncode == 1
    assert table(packed)["hardware"] == "ended with 3"
    assert table(packed)["import"] == "ok"
    assert "what is wrong" in (packed / "out" / "hardware.log").read_text()


def test_the_time_of_all_steps_is_limited(packed: Path) -> None:
    step(packed, "collectives_test", "sleep 600 & wait")
    assert run(packed, "--fake", "--seconds", "4").returncode == 1
    results = table(packed)
    assert results["simulated"].startswith("not ended within ")
    assert results["import"] == "not run: no time is left"


def test_a_folder_that_is_not_packed(tmp_path: Path) -> None:
    shutil.copy2(PROGRAM, tmp_path / "gpu_check")
    done = run(tmp_path, "--fake")
    assert done.returncode == 1
    assert "has 0 wheels" in done.stdout
