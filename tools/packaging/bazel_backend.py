"""The build hook of `pip install .` (PEP 517): Bazel makes the wheel, this hands it over.

Nothing is downloaded; what Bazel needs is installed by tools/setup (or by hand, from tools/packages.txt).
"""

from __future__ import annotations

import shutil
import subprocess
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


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Not offered: the source is a Git checkout."""
    raise RuntimeError("BytePS has no source distribution: clone it, and run `pip install .`")
