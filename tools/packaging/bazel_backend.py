"""The build hook of `pip install .` (PEP 517): Bazel makes the wheel, this hands it over.

Nothing is downloaded; what Bazel needs is installed by tools/setup (or by hand, from tools/packages.txt).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def build_wheel(wheel_directory: str, config_settings: dict[str, Any] | None = None, *_: Any) -> str:
    """Builds the wheel; `--config-settings plugins=tcp,fifo` selects what it contains."""
    if shutil.which("bazel") is None:
        raise RuntimeError("building BytePS needs Bazel and a few Debian packages: run tools/setup first")
    flags = [f"--//:plugins={config_settings['plugins']}"] if config_settings and "plugins" in config_settings else []
    target = "//frameworks/python:wheel"
    subprocess.run(["bazel", "build", *flags, target], cwd=ROOT, check=True)
    (wheel,) = (ROOT / "bazel-bin" / "frameworks" / "python" / "wheel").glob("*.whl")
    shutil.copyfile(wheel, Path(wheel_directory) / wheel.name)
    return wheel.name


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
