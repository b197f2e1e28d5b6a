"""The smoke suites of the frameworks' bindings, each version in a fresh virtual environment.

    .venv/bin/python tools/framework_versions.py [NAME ...]     # a framework (jax), or a version (jax-0.5); none: all

tools/test --frameworks runs them too, behind the tests of the environments that stay. The versions are in
tools/framework_versions.txt. The wheel must have been built (bazel build //frameworks/python:wheel).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "framework_versions.txt"
PLACE = ROOT / ".deps" / "versions"

# Beside the framework.
_ALWAYS = ("cloudpickle", "numpy", "pytest", "scikit-learn")

# At least twenty checks of each, in real jobs: dtypes and reductions, names, gradients, transformations, errors of all
# ranks, a rank that dies, many tensors at once, training, imports in both orders; and all that a binding does with
# parts of its framework that are private or change from version to version: strategies, devices, places.
SUITES = {
    "jax": (
        "ops_job",
        "gradients_job",
        "names_job",
        "errors_job",
        "optimizer_job",
        "devices_job",
        "failures_job",
        "import_order",
    ),
    "mxnet": ("ops_job", "bits", "training_job", "import_order"),
    "tensorflow": (
        "ops_job",
        "training_job",
        "loops_job",
        "collectives_job",
        "distribute_job",
        "half_steps_job",
        "places_job",
        "bits",
        "import_order",
    ),
}
# Keras comes with TensorFlow, as the package keras and, from 2.15 on, as tf_keras; its other backends are not there.
BESIDE = {"tensorflow": ("tests/frameworks/keras/test_keras_job.py",)}


@dataclass(frozen=True)
class Version:
    """One line of the list."""

    name: str  # such as jax-0.5
    packages: tuple[str, ...]

    @property
    def framework(self) -> str:
        """Whose version it is."""
        return self.name.split("-")[0]

    @property
    def place(self) -> Path:
        """Its environment, while its suite runs."""
        return PLACE / self.name

    def files(self) -> list[str]:
        """The test files of its suite."""
        of = self.framework
        own = [f"tests/frameworks/{of}/test_{of}_{each}.py" for each in SUITES[of]]
        return [*own, *BESIDE.get(of, ())]


def versions(asked: str = "") -> list[Version]:
    """Those of a framework, or the one of this name; "": all."""
    found = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *packages = line.split()
            found.append(Version(name, tuple(packages)))
    return [version for version in found if asked in ("", version.name, version.framework)]


def install(version: Version) -> Path | None:
    """A fresh environment with the version and the wheel; its interpreter. None if pip cannot make it, which it has
    then said."""
    shutil.rmtree(version.place, ignore_errors=True)
    python = version.place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    named = {package.split("=")[0].split("<")[0] for package in version.packages}
    beside = [package for package in _ALWAYS if package not in named]
    for command in (
        [sys.executable, "-m", "venv", str(version.place)],
        [*pip, *version.packages, *beside],
        [str(python), "tools/install_wheel.py"],
    ):
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            return None
    return python


def run(version: Version, results: Path) -> int | None:
    """Runs the suite of one version, its JUnit file at `results`, and takes the environment away again. The exit status
    of pytest; None: not installed."""
    results.unlink(missing_ok=True)
    try:
        python = install(version)
        if python is None:
            return None
        command = [str(python), "-m", "pytest", "-q", "-rs", "--junit-xml", str(results), *version.files()]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        shutil.rmtree(version.place, ignore_errors=True)


def main(arguments: list[str]) -> int:
    chosen = [version for name in arguments or [""] for version in versions(name)]
    if not chosen:
        print(f"no such version; {LIST.name} has {', '.join(version.name for version in versions())}")
        return 2
    PLACE.mkdir(parents=True, exist_ok=True)
    said = []
    for version in chosen:
        print(f"==== {version.name}: {' '.join(version.packages)}", flush=True)
        status = run(version, PLACE / f"{version.name}.xml")
        said.append(f"{version.name}: {'not installed' if status is None else 'passed' if status == 0 else 'failed'}")
        print(f"---- {said[-1]}", flush=True)
    print("\n".join(said))
    return 0 if all(line.endswith("passed") for line in said) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
