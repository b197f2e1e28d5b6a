"""The packed wheel, made usable for the Python that is there.

python3 -m gpu.site extension SITE SOURCES      # compiles byteps/_native.so, the files side by side
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def unpack(wheel: Path, site: Path) -> None:
    """The wheel's files, its programs executable."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for program in (file for file in site.rglob("*") if file.is_file() and file.parent.name in ("bin", "scripts")):
        program.chmod(0o755)


def add_libraries(packed: Path, folder: Path) -> None:
    """Links in `folder` to the packed libraries that the loader does not find by itself. What the machine has must not
    be hidden: its Python may need its own zlib."""
    known = set()
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            told = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
            known = {line.split()[0] for line in told.splitlines() if "=>" in line}
            break
    folder.mkdir(parents=True, exist_ok=True)
    for library in packed.iterdir():
        link = folder / library.name
        link.unlink(missing_ok=True)
        if library.name not in known:
            link.symlink_to(library)


def launcher(site: Path, workers: int, servers: int = 0) -> list[str]:
    """bpslaunch, which needs no extension; the command of a worker follows."""
    program = site / "byteps" / "launcher" / "launch.py"
    return [sys.executable, str(program), "--workers", str(workers), "--servers", str(servers), "--"]


def why_no_compiler() -> str:
    """Why no extension can be compiled for this Python; empty if one can."""
    if shutil.which("g++") is None:
        return "no g++"
    headers = Path(sysconfig.get_paths()["include"])
    return "" if (headers / "Python.h").exists() else f"no headers of Python in {headers}"


def compile_extension(site: Path, source: Path) -> int:
    """byteps/_native.so for this Python: g++ and Python's headers are needed."""
    files = [*(source / "frameworks/python/native").glob("*.cc"), source / "frameworks/common/library.cc"]
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{source}"]
    flags.append(f"-I{sysconfig.get_paths()['include']}")
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{number}.o" for number in range(len(files))]

        def one(pair: tuple[Path, str]) -> int:
            return subprocess.run(["g++", *flags, "-c", str(pair[0]), "-o", pair[1]], check=False).returncode

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            if any(pool.map(one, zip(files, objects))):
                return 1
        target = str(site / "byteps" / "_native.so")
        link = ["g++", "-shared", "-pthread", *objects, "-ldl", "-o", target]
        return subprocess.run(link, check=False).returncode


if __name__ == "__main__":
    sys.exit(compile_extension(Path(sys.argv[2]), Path(sys.argv[3])))
