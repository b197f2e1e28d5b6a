"""gpu_check: what it says where there is no GPU, how it runs its steps and judges its figures, and all of its jobs on
the simulated GPU, on a packed folder made by hand."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests" / "frameworks" / "support"))

from gpu import nccl
from gpu.goals import GOALS, verdicts
from gpu.machine import gpu_facts
from gpu.report import size_text, text
from gpu.site import add_libraries, why_no_compiler
from gpu.steps import FAILED, Row, Steps
from jobs import clean_environment, launcher_command

PROGRAM = ROOT / "tools" / "gpu_check"
# A driver and an NCCL whose GPUs are simulated; tools/test keeps copies of its own.
STANDINS = Path(os.environ.get("GPU_STANDINS") or ROOT / "bazel-bin/tests/device_plugins/cuda")
LIMIT = 1800
# The machine may be busy with other tests.
PATIENT = ("--patience", "10", "--seconds", "1500")
# What needs no GPU, and no library.
PLAIN = "simulated,hardware,extension,import,jax_*"


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
        wheel.writestr("byteps/launcher/launch.py", "import sys\nprint(sys.argv)\n")
    shutil.copy2(PROGRAM, folder / "gpu_check")
    shutil.copytree(ROOT / "tools" / "gpu", folder / "gpu")
    (folder / "fake" / "nccl" / "lib").mkdir(parents=True)
    shutil.copy2(STANDINS / "standin" / "libcuda.so.1", folder / "fake")
    shutil.copy2(STANDINS / "nccl" / "lib" / "libnccl.so.2", folder / "fake" / "nccl" / "lib")
    step(folder, "collectives_test", "exit 0")
    step(folder, "hardware_test", "exit 0")
    return folder


@pytest.fixture
def complete(packed: Path) -> Path:
    """With the library that is installed."""
    spec = importlib.util.find_spec("byteps")
    assert spec is not None and spec.origin is not None, "byteps is not installed"
    package = Path(spec.origin).parent
    with zipfile.ZipFile(packed / "byteps.whl", "w") as wheel:
        for part in ("launcher", "lib", "bin"):
            for file in (package / part).rglob("*"):
                wheel.write(file, Path("byteps") / file.relative_to(package))
    return packed


def step(folder: Path, name: str, script: str) -> None:
    """Makes one of the programs that it runs."""
    program = folder / "bin" / name
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)


def run(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "gpu_check"), "run", str(folder / "out"), *PATIENT, *options]
    # Of the GPUs that it sees, not of this test's own job.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("BYTEPS_", "DMLC_", "NCCL_"))}
    environment.update(OMP_NUM_THREADS="1", **variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def table(folder: Path) -> dict[str, str]:
    rows = (folder / "out" / "steps.md").read_text().splitlines()[2:]
    return {name.strip(): result.strip() for _, name, result, *_ in (row.split("|") for row in rows)}


def assert_went_well(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """A failed step's log says why."""
    if done.returncode != 0:
        logs = {file.name: file.read_text(errors="replace")[-2000:] for file in (folder / "out").glob("*.log")}
        failed = [logs.get(f"{name}.log", "") for name, result in table(folder).items() if "ended" in result]
        pytest.fail("\n".join([done.stdout, done.stderr, *failed]))


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
    done = run(packed, "--fake", "--only", PLAIN)
    assert_went_well(packed, done)
    results = table(packed)
    assert [results[name] for name in ("simulated", "hardware", "extension", "import")] == ["ok"] * 4
    assert "bin/hardware_test" in (packed / "out" / "hardware.log").read_text()


@pytest.mark.parametrize("has_cuda", [True, False])
def test_jax_is_checked_where_it_has_a_gpu(packed: Path, has_cuda: bool) -> None:
    devices = "return [kind]" if has_cuda else "raise RuntimeError('Unknown backend cuda')"
    with zipfile.ZipFile(packed / "byteps.whl", "a") as wheel:
        wheel.writestr("jax/__init__.py", f"def devices(kind):\n    {devices}\n")
    done = run(packed, "--fake", "--only", PLAIN)
    assert_went_well(packed, done)
    steps = {name: result for name, result in table(packed).items() if name.startswith("jax")}
    if has_cuda:
        assert steps == {"jax_1": "ok", "jax_2": "ok"}
        assert "gpu.jax_values" in (packed / "out" / "jax_2.log").read_text()
    else:
        assert steps == {}
        assert "no JAX with CUDA here, so no step of it: RuntimeError: Unknown backend cuda" in done.stdout


def test_a_step_that_fails_is_a_failure_of_the_whole(packed: Path) -> None:
    step(packed, "hardware_test", "echo what is wrong; exit 3")
    assert run(packed, "--fake", "--only", PLAIN).returncode == 1
    assert table(packed)["hardware"] == "ended with 3"
    assert table(packed)["import"] == "ok"
    assert "what is wrong" in (packed / "out" / "hardware.log").read_text()


def test_the_time_of_all_steps_is_limited(packed: Path) -> None:
    step(packed, "collectives_test", "sleep 600 & wait")
    assert run(packed, "--fake", "--only", PLAIN, "--seconds", "4").returncode == 1
    results = table(packed)
    assert results["simulated"].startswith("not ended within ")
    assert results["import"] == "not run: no time is left"


def test_questions_take_no_time_that_the_steps_do_not_have(packed: Path) -> None:
    """Modules that hang when they are imported: one question takes what is left, the others are not asked."""
    for module in ("numpy", "torch"):
        pretend(packed, module, "import time\n\ntime.sleep(987)\n")
    began = time.monotonic()
    wanted = "job_alone,rate_null,benchmark_1,jax_1"
    # As on a machine with a GPU, whose PyTorch is asked.
    done = run(packed, "--only", wanted, "--seconds", "6", LD_LIBRARY_PATH=str(packed / "fake"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert time.monotonic() - began < 60, "a question was not bounded by the time of the steps"
    results = table(packed)
    assert results["benchmark_1"] == results["jax_1"] == "not run: no time is left"
    report = (packed / "out" / "results.md").read_text()
    assert "none, or without CUDA: it has not ended within 5 s" in report


def pretend(folder: Path, module: str, text: str) -> None:
    """A module of the steps, in place of the one that is installed."""
    with zipfile.ZipFile(folder / "byteps.whl", "a") as wheel:
        wheel.writestr(f"{module}/__init__.py", text)


def test_a_gpu_that_is_ill_costs_no_figures(packed: Path) -> None:
    driver = packed / "gpu" / "driver.py"
    begin = '        """As its maker calls it."""\n'
    assert begin in driver.read_text()
    driver.write_text(
        driver.read_text().replace(begin, begin + "        raise CudaError('it has fallen off the bus')\n")
    )
    done = run(packed, "--fake", "--only", "simulated")
    assert_went_well(packed, done)
    report = (packed / "out" / "results.md").read_text()
    assert "| GPU | unknown: gpu.driver.CudaError: it has fallen off the bus (simulated" in report
    assert "| bus of the first GPU | unknown |" in report
    assert "| simulated | ok |" in report


def test_a_driver_that_does_not_return_is_not_waited_for(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools" / "gpu", tmp_path / "gpu")
    (tmp_path / "gpu" / "driver.py").write_text("import time\n\n\ndef Gpu(index):\n    time.sleep(987)\n")
    facts = gpu_facts({**os.environ, "PYTHONPATH": str(tmp_path)}, fake=False, limit=3)
    assert facts["GPU"] == "unknown: it has not ended within 3 s"
    assert facts["driver"].endswith(", CUDA unknown")


def test_what_breaks_in_the_middle_is_reported(packed: Path) -> None:
    plan = packed / "gpu" / "plan.py"
    last = "        self.frameworks()\n\n"
    assert last in plan.read_text()
    plan.write_text(plan.read_text().replace(last, "        raise SystemExit(3)\n\n"))
    assert run(packed, "--fake", "--only", "simulated").returncode == 3
    assert "| simulated | ok |" in (packed / "out" / "results.md").read_text()


def test_without_numpy_its_steps_are_declined(packed: Path) -> None:
    pretend(packed, "numpy", "raise ModuleNotFoundError(\"No module named 'numpy'\")\n")
    done = run(packed, "--fake", "--only", "job_*,rate_null,rate_two_nccl,simulated")
    assert_went_well(packed, done)
    results = table(packed)
    assert results.pop("simulated") == "ok"
    assert {"job_alone", "job_mapped", "rate_null", "job_nccl", "job_nccl_bits", "rate_two_nccl"} <= set(results)
    assert set(results.values()) == {"not run: no NumPy"}


@pytest.mark.parametrize("importable", [True, False])
def test_without_a_compiler_the_extension_is_that_of_the_wheel(packed: Path, importable: bool) -> None:
    if not importable:
        with zipfile.ZipFile(packed / "byteps.whl", "w") as wheel:
            wheel.writestr("byteps/__init__.py", "import byteps._native\n")
            wheel.writestr("byteps/launcher/launch.py", "import sys\nprint(sys.argv)\n")
    names = ("import", "torch_values", "torch_expandable", "benchmark_1", "benchmark_2", "jax_1", "jax_2")
    done = run(packed, "--fake", "--only", ",".join(["extension", *names]), PATH="/nowhere")
    assert_went_well(packed, done)
    results = table(packed)
    assert results["extension"] == "not run: no g++"
    if importable:
        assert [results[name] for name in names[:3]] == ["ok"] * 3
    else:
        assert {results[name] for name in names} == {"not run: no extension of byteps for this Python: no g++"}


def test_headers_of_python_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_compiler() == ""
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert why_no_compiler() == f"no headers of Python in {tmp_path}"


@pytest.mark.parametrize("has_cuda", [True, False])
def test_the_benchmark_is_run_where_pytorch_has_a_gpu(packed: Path, has_cuda: bool) -> None:
    pretend(packed, "torch", f"class cuda:\n    is_available = staticmethod(lambda: {has_cuda})\n")
    for variables, expected in (
        ({"GPU_CHECK_FAKE": "1"}, "the GPU is simulated"),
        ({}, "" if has_cuda else "torch.cuda.is_available() is False"),
    ):
        # As on a machine with a GPU: the driver is the stand-in, and nobody has said so.
        given = ["--fake"] if variables else []
        libraries = {"LD_LIBRARY_PATH": str(packed / "fake")}
        done = run(packed, *given, "--only", "benchmark_*", **libraries, **variables)
        assert_went_well(packed, done)
        result = f"not run: no PyTorch with CUDA: {expected}" if expected else "ok"
        assert table(packed) == {"benchmark_1": result, "benchmark_2": result}


def test_a_folder_that_is_not_packed(tmp_path: Path) -> None:
    shutil.copy2(PROGRAM, tmp_path / "gpu_check")
    shutil.copytree(ROOT / "tools" / "gpu", tmp_path / "gpu")
    shutil.copytree(
        STANDINS / "standin", tmp_path / "fake", symlinks=False, ignore=shutil.ignore_patterns("*.runfiles*")
    )
    done = run(tmp_path, "--fake")
    assert done.returncode == 1
    assert "has 0 wheels" in done.stdout


def test_without_simulated_gpus_fake_runs_nothing(packed: Path) -> None:
    (packed / "fake" / "libcuda.so.1").write_text("")
    assert run(packed, "--fake").returncode == 77
    assert not (packed / "out").exists()


def test_libraries_of_the_machine_are_not_hidden(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for name in ("libc.so.6", "libnowhere.so.9"):
        (packed / name).write_text("")
    add_libraries(packed, tmp_path / "lib")
    assert [file.name for file in (tmp_path / "lib").iterdir()] == ["libnowhere.so.9"]


# ---- Steps ----


def steps_of(tmp_path: Path, seconds: float = 60) -> Steps:
    return Steps(tmp_path, dict(os.environ), seconds)


def runs(pid: int) -> bool:
    """Whether there is this process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_step_that_hangs_and_does_not_listen_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    child = tmp_path / "child"
    deaf = f"trap '' TERM; sleep 987 & echo $! > {child}; wait; sleep 987"
    assert not steps.run("deaf", ["bash", "-c", deaf], 3)
    assert steps.rows[0].result == "not ended within 3 s"
    # Killed, it ends when a core is free for it, and it stays in the table until its new parent has seen that.
    deadline = time.monotonic() + 60
    while runs(int(child.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert steps.run("next", ["true"], 10)
    assert steps.failed()


def test_what_cannot_run_here_is_no_failure_and_says_why(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    assert not steps.run("casts", ["bash", "-c", "echo '[worker 0] not run: no kernels'; echo the end; exit 77"], 30)
    steps.decline("nccl", "there is none")
    assert [row.result for row in steps.rows] == ["not run: no kernels", "not run: there is none"]
    assert not steps.failed()
    assert "| casts | not run: no kernels |" in (tmp_path / "steps.md").read_text()


def test_a_missed_goal_is_seen_and_no_failure(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    steps.judge("goal_null", "below the goal: 80% of the raw loop; goal: 95%", met=False)
    assert not steps.failed()
    assert steps.missed() == ["goal_null"]
    steps.add("rate_null_figures", "there are none", kind=FAILED)
    assert steps.failed()


# ---- Goals, NCCL, the report ----

FIGURES = {
    "copies_loop": {"rows": [{"chunk": 1 << 20, "gb_s": 40.0}], "best": 40.0},
    "copies_two": {"rates": [20.0, 21.0], "sum": 41.0, "gpus": 1},
    "rate_null": {"rows": [{"bytes": 4 << 20, "tensors": 64, "gb_s": 39.0}], "best": 39.0, "workers": 1},
    "rate_server": {"rows": [], "best": 30.0, "workers": 1},
    "rate_two": {"rows": [], "best": 16.0, "workers": 2},
    "rate_gloo": {"rows": [], "best": 2.0, "device": "cuda"},
}


def test_goals() -> None:
    found = {verdict.goal.name: verdict for verdict in verdicts(FIGURES)}
    assert list(found) == [goal.name for goal in GOALS]
    assert found["goal_null"].line() == "98% of the raw loop; goal: 95%"
    assert found["goal_server"].line() == "below the goal: 75% of the raw loop; goal: 85%"
    # Both workers together, against both loops together.
    assert found["goal_two"].line() == "78% of two raw loops at once; goal: 75%"
    # Each worker, against each process of Gloo.
    assert found["goal_gloo"].line() == "8.0 x of Gloo on CUDA tensors; goal: 4.0 x"
    assert [verdict.met for verdict in found.values()] == [True, False, True, True]


def test_gloo_on_the_host_is_no_peer_of_a_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("PyTorch has CUDA here")
    command = [sys.executable, "-m", "gpu.gloo", "--out", str(tmp_path / "gloo.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (77, "not run: PyTorch has no CUDA here\n"), done.stderr
    assert not (tmp_path / "gloo.json").exists()


def test_a_goal_that_was_not_measured_is_not_below(packed: Path) -> None:
    done = run(packed, "--fake", "--only", "goal_gloo")
    assert_went_well(packed, done)
    assert table(packed) == {"goal_gloo": "no ratio: rate_two has no figure"}
    assert "below" not in done.stdout


def test_a_goal_without_figures_is_not_met() -> None:
    found = {verdict.goal.name: verdict for verdict in verdicts({"rate_null": FIGURES["rate_null"]})}
    assert found["goal_null"].line() == "no ratio: copies_loop has no figure"
    assert found["goal_two"].line() == "no ratio: rate_two has no figure"
    assert not any(verdict.met for verdict in found.values())


def test_the_report_shows_a_missed_goal() -> None:
    shown = text({"GPU": "1 x H200"}, FIGURES, verdicts(FIGURES), [Row("rate_null", "ok", 2.0, "ok")])
    assert (
        "| one worker and a server, shared memory | 30.00 | the raw loop: 40.00 | 75% | 85% | **below the goal** |"
        in shown
    )
    assert "| one worker alone: the copies, and nothing else | 64 x 4 MiB | 39.00 |" in shown
    assert "20.00 and 21.00 GB/s" in shown
    assert [size_text(size) for size in (512, 64 << 10, 3 << 19, 1 << 30)] == ["512 B", "64 KiB", "1.5 MiB", "1 GiB"]


def test_which_nccl_is_used(tmp_path: Path) -> None:
    assert nccl.find(tmp_path, places=[tmp_path / "libnccl.so.2"]) is None
    assert "no NCCL 2.18 or later was found" in nccl.plan(None, gpus=2)[1]
    old = nccl.Nccl(22809, Path("/x/lib/libnccl.so.2"))
    new = nccl.Nccl(23007, Path("/y/lib/libnccl.so.2"))
    variables, why_not = nccl.plan(old, gpus=1)
    assert not variables
    assert "one GPU, and NCCL 2.28.9 (/x/lib/libnccl.so.2) takes one rank of a GPU" in why_not
    variables, why_not = nccl.plan(old, gpus=2)
    assert why_not == ""
    assert variables["BYTEPS_NCCL_HOME"] == "/x"
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in variables
    assert nccl.plan(new, gpus=1)[0]["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


# ---- Jobs on the simulated GPU ----


def test_jobs_with_known_results(complete: Path) -> None:
    pytest.importorskip("numpy")
    done = run(
        complete, "--fake", "--only", "job_alone,job_shm,job_tcp,job_two*,job_cpu*,job_bits*,job_cast*,job_mapped"
    )
    assert_went_well(complete, done)
    results = table(complete)
    for name in ("alone", "shm", "tcp", "two", "two_servers", "cpu_beside_gpu", "bits", "bits_local"):
        assert results[f"job_{name}"] == "ok", results
    # As `pack` has built it; without nvcc the log says that there are no kernels.
    for name in ("casts", "cast_alone"):
        assert results[f"job_{name}"] == "ok" or "built without its kernels" in results[f"job_{name}"]
    assert results["job_mapped"].startswith("not run: memory that is mapped piece by piece: this driver lacks")
    log = (complete / "out" / "job_cpu_beside_gpu.log").read_text()
    assert "servers, GPU 0;" in log
    assert "servers, the host;" in log
    assert "shm" in (complete / "out" / "job_shm.log").read_text()


def test_the_job_of_memory_that_is_mapped_piece_by_piece(complete: Path) -> None:
    """The stand-in of the driver maps none: but for that, all of the job runs."""
    pytest.importorskip("numpy")
    driver = complete / "gpu" / "driver.py"
    begin = "        size = -(-size // piece) * piece\n"
    assert begin in driver.read_text()
    driver.write_text(driver.read_text().replace(begin, "        return self.allocate(size)\n" + begin))
    done = run(complete, "--fake", "--only", "job_mapped")
    log = (complete / "out" / "job_mapped.log").read_text()
    assert (done.returncode, table(complete)["job_mapped"]) == (0, "ok"), log
    assert "one allocation: cuMemAlloc True, cuMemMap True" in log
    assert "mapped: right" in log


def test_the_worker_of_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = clean_environment(PYTHONPATH=os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]))
    command = [*launcher_command(2, 0), sys.executable, "-m", "gpu.torch_values", "--cpu"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1 on cpu: right" in done.stdout


def test_a_wrong_value_is_a_failure_that_names_it(complete: Path) -> None:
    pytest.importorskip("numpy")
    values = complete / "gpu" / "values.py"
    right = "(np.arange(count) * 7 + round_) % 13 + rank"
    assert right in values.read_text()
    # The test's own ranks disagree about what the others send.
    values.write_text(values.read_text().replace(right, f"{right} + (os.environ['BYTEPS_LOCAL_RANK'] == '1')"))
    assert run(complete, "--fake", "--only", "job_two").returncode == 1
    assert table(complete)["job_two"] == "ended with 1"
    assert "AssertionError: sum.12002.1, round 0: element 0 of 1 is" in (complete / "out" / "job_two.log").read_text()


def test_rates_and_their_goals(complete: Path) -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("torch")
    done = run(complete, "--fake", "--only", "copies*,rate*,goal*")
    assert_went_well(complete, done)
    results = table(complete)
    assert {name: result for name, result in results.items() if not name.startswith("goal") and result != "ok"} == {}
    assert len([name for name in results if name.startswith("goal")]) == 4
    assert all("; goal: " in result for name, result in results.items() if name.startswith("goal"))
    report = (complete / "out" / "results.md").read_text()
    assert "simulated: no figure means anything" in report
    assert "| pinned | 64 KiB |" in report
    assert "| one worker, one server, TCP on loopback | 2 x 1 MiB |" in report


def test_nccl_between_ranks_that_share_the_only_gpu(complete: Path) -> None:
    pytest.importorskip("numpy")
    one = {"STANDIN_CUDA_DEVICES": "1", "STANDIN_CUDA_DOMAIN": "7"}
    done = run(complete, "--fake", "--only", "job_nccl*", STANDIN_NCCL_VERSION="22809", **one)
    assert_went_well(complete, done)
    assert "NCCL 2.28.9" in table(complete)["job_nccl"]
    done = run(complete, "--fake", "--only", "job_nccl*", STANDIN_NCCL_VERSION="23007", **one)
    assert_went_well(complete, done)
    results = table(complete)
    assert results["job_nccl"] == "ok"
    assert "built without its kernels" in results.get("job_nccl_bits_way", "built without its kernels")
    assert "| NCCL that the job has used | 23007, " in (complete / "out" / "results.md").read_text()


@pytest.mark.parametrize(("gpus", "workers"), [("1", 3), ("2", 2), ("4", 3)])
def test_no_more_ranks_by_nccl_than_gpus(packed: Path, gpus: str, workers: int) -> None:
    pretend(packed, "numpy", "")
    done = run(packed, "--fake", "--only", "job_nccl_bits", STANDIN_CUDA_DEVICES=gpus, STANDIN_NCCL_VERSION="23007")
    assert_went_well(packed, done)
    assert f"'--workers', '{workers}', " in (packed / "out" / "job_nccl_bits.log").read_text()


def test_a_hang_within_nccl_ends_its_step_alone(complete: Path) -> None:
    pytest.importorskip("numpy")
    variables = {"STANDIN_NCCL_STALL": "1", "GPU_CHECK_TIMEOUT_MS": "4000"}
    done = run(complete, "--fake", "--only", "job_nccl,copies_table", **variables)
    assert done.returncode == 1
    results = table(complete)
    assert results["job_nccl"].startswith("ended with "), results
    assert results["copies_table"] == "ok"
    assert "have not ended" in (complete / "out" / "job_nccl.log").read_text()
