"""Makes the wheels of a release: one for each Python whose headers are there or are named.

    python3 tools/packaging/wheels.py dist
    python3 tools/packaging/wheels.py dist --headers /opt/python3.13/include/python3.13 --manylinux --bazel="-c opt"

Without --headers: every Python of 3.9 to 3.13 in PATH that has its headers beside it. They alone are needed, not the
interpreter: the wheel of another Python than this system's is built from headers that were unpacked into some folder.
For Python 3.12 and newer the system's pybind11 may be too old: then this takes the one of the Python that runs it
(`pip install pybind11`).

Afterwards bazel-bin has the wheel that was made last.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bazel_backend import build

_SUPPORTED = range(9, 14)
_MANYLINUX = Path(__file__).with_name("manylinux.py")


def installed() -> list[Path]:
    """The folders of headers of the Pythons in PATH."""
    found = []
    for minor in _SUPPORTED:
        interpreter = shutil.which(f"python3.{minor}")
        if interpreter is None:
            continue
        command = [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
        folder = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        if (folder / "Python.h").exists():
            found.append(folder)
        else:
            print(f"wheels: none for {interpreter}: its headers are not in {folder}", flush=True)
    return found


def version(headers: Path) -> tuple[int, int]:
    """Of the Python that the headers are of. Raises SystemExit where there are none."""
    file = headers / "patchlevel.h"
    text = file.read_text() if file.exists() else ""
    numbers = [re.search(rf"^#define\s+PY_{part}_VERSION\s+(\d+)", text, re.M) for part in ("MAJOR", "MINOR")]
    if None in numbers:
        raise SystemExit(f"wheels: {headers} has no headers of Python: there is no version in patchlevel.h")
    major, minor = (int(number[1]) for number in numbers if number is not None)
    return major, minor


def main() -> int:
    """Builds them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("--headers", type=Path, action="append", metavar="DIR", help="folder that has Python.h")
    parser.add_argument("--manylinux", action="store_true", help="put the libraries that they link inside")
    parser.add_argument("--bazel", default="", metavar="FLAGS", help="more flags of Bazel, such as '-c opt'")
    arguments = parser.parse_args()
    folders = [folder.resolve() for folder in arguments.headers or installed()]
    if not folders:
        print("wheels: no Python here has its headers; name their folder with --headers")
        return 1
    built = arguments.folder / "linux" if arguments.manylinux else arguments.folder
    for folder in folders:
        wheel = build(folder, version(folder), built, shlex.split(arguments.bazel))
        if arguments.manylinux:
            subprocess.run([sys.executable, _MANYLINUX, wheel, arguments.folder], check=True)
        print(f"wheels: {wheel.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
