"""Installs the wheel that //frameworks/python:wheel made into this environment, unless it is there already."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    wheels = sorted((ROOT / "bazel-bin" / "frameworks" / "python" / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        print(f"install_wheel: expected one wheel in bazel-bin/frameworks/python/wheel, found {names}")
        return 1
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    stamp = Path(sysconfig.get_paths()["purelib"]) / "byteps.wheel.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return 0
    print(f"install_wheel: installing {wheels[0].name}", flush=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    status = subprocess.run(
        [*command, "--no-deps", "--no-index", "--force-reinstall", str(wheels[0])], check=False
    ).returncode
    if status == 0:
        stamp.write_text(digest)
    return status


if __name__ == "__main__":
    sys.exit(main())
