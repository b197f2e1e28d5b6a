"""The build hook of `pip install .` (PEP 517): Bazel makes the wheel, for the Python that runs this; this hands it on.

What Bazel needs is installed by tools/setup (or by hand, from tools/packages.txt). Nothing is downloaded, unless the
system's pybind11 is too old for this Python: then pip brings a newer one.
"""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def needed_pybind11(python: tuple[int, int]) -> tuple[int, int]:
    """The oldest pybind11 that knows this Python, as third_party/python/python_headers.bzl has it."""
    return (2, 13) if python >= (3, 13) else (2, 11) if python >= (3, 12) else (2, 10)


def pybind11_flags(python: tuple[int, int]) -> list[str]:
    """Flags of Bazel: where pybind11 is; none where the system's serves. Raises RuntimeError if none is new enough."""
    needed = needed_pybind11(python)
    if system_pybind11() >= needed:
        return []
    installed = installed_pybind11()
    if installed is None:
        raise RuntimeError(
            f"the system's pybind11 is missing or too old for Python {python[0]}.{python[1]}: "
            f"pip install 'pybind11>={needed[0]}.{needed[1]}'"
        )
    return [f"--repo_env=BYTEPS_PYBIND11_INCLUDE={installed}"]


def installed_pybind11() -> Path | None:
    """The folder of the headers of the pybind11 that this Python has as a package."""
    spec = importlib.util.find_spec("pybind11")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "include"


def missing_pybind11(python: tuple[int, int]) -> list[str]:
    """What is to be installed, where the system's pybind11 does not know this Python."""
    needed = needed_pybind11(python)
    return [] if system_pybind11() >= needed else [f"pybind11>={needed[0]}.{needed[1]}"]


def system_pybind11() -> tuple[int, ...]:
    """The version that pkg-config finds; (0,) for none."""
    if shutil.which("pkg-config") is None:
        return (0,)
    said = subprocess.run(["pkg-config", "--modversion", "pybind11"], check=False, capture_output=True, text=True)
    return tuple(int(part) for part in said.stdout.strip().split(".")[:2]) if said.returncode == 0 else (0,)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What pip installs before it builds."""
    return missing_pybind11(sys.version_info[:2])


def headers() -> Path:
    """The folder of the headers of the Python that runs this. Raises RuntimeError where they are not installed."""
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise RuntimeError(
            f"the headers of Python {version} are not in {folder}: install them (Debian: python{version}-dev)"
        )
    return folder


@contextmanager
def bazel() -> Iterator[list[str]]:
    """The command of Bazel. In a checkout it is the one that is used there. Sources that were unpacked to be built
    once, as pip does, have one of their own, which leaves no server and no outputs behind."""
    if shutil.which("bazel") is None:
        raise RuntimeError("building BytePS needs Bazel and a few Debian packages: run tools/setup first")
    if not (ROOT / "PKG-INFO").exists():
        yield ["bazel"]
        return
    folder = tempfile.mkdtemp(prefix="byteps_bazel_")
    try:
        yield ["bazel", "--batch", f"--output_user_root={folder}"]
    finally:
        # Bazel's outputs are read-only.
        subprocess.run(["chmod", "-R", "u+w", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def build(include: Path, python: tuple[int, int], folder: Path, flags: list[str]) -> Path:
    """Builds the wheel of a Python that has its headers in `include`, and copies it into `folder`."""
    target = "//frameworks/python:wheel"
    of_python = [f"--repo_env=BYTEPS_PYTHON_INCLUDE={include}", *pybind11_flags(python)]
    with bazel() as command:
        subprocess.run([*command, "build", *of_python, *flags, target], cwd=ROOT, check=True)
        (wheel,) = (ROOT / "bazel-bin" / "frameworks" / "python" / "wheel").glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / wheel.name
        made.unlink(missing_ok=True)
        shutil.copyfile(wheel, made)
    return made


def build_wheel(wheel_directory: str, config_settings: dict[str, Any] | None = None, *_: Any) -> str:
    """Builds the wheel.

    `--config-settings plugins=tcp,fifo` selects what it contains, `--config-settings "bazel=-c opt"` gives flags to
    Bazel.
    """
    settings = config_settings or {}
    flags = [f"--//:plugins={settings['plugins']}"] if "plugins" in settings else []
    flags += shlex.split(settings.get("bazel", ""))
    return build(headers(), sys.version_info[:2], Path(wheel_directory), flags).name


def release() -> str:
    """The release, as core/ has it."""
    (header,) = [path for path in (ROOT / "core").rglob("version.h")]
    found = re.search(r'kRelease\[\] = "([^"]+)"', header.read_text())
    if found is None:
        raise RuntimeError(f"no release in {header}")
    return found[1]


def sources() -> list[Path]:
    """What belongs into a source distribution: what Git knows, or, unpacked from one, everything that was in it."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return sorted(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())
    kept = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and not path.is_symlink()]
    built = (".venv", ".deps", "dist", "build", "__pycache__")
    return sorted(
        path for path in kept if not any(part in built or part.startswith("bazel-") for part in path.parts[:-1])
    )


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """The sources as a tar file; what builds from it needs Bazel and the Debian packages of tools/packages.txt."""
    name = f"byteps-{release()}"
    metadata = (
        f"Metadata-Version: 2.1\nName: byteps\nVersion: {release()}\n"
        "Summary: Gradient communication for data-parallel training\nLicense: Apache-2.0\nRequires-Python: >=3.9\n"
        f"Description-Content-Type: text/markdown\n\n{(ROOT / 'README.md').read_text()}"
    ).encode()
    with tarfile.open(Path(sdist_directory) / f"{name}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for path in sources():
            if path.name != "PKG-INFO":
                tar.add(ROOT / path, f"{name}/{path}", recursive=False)
        info = tarfile.TarInfo(f"{name}/PKG-INFO")
        info.size = len(metadata)
        tar.addfile(info, io.BytesIO(metadata))
    return f"{name}.tar.gz"
