"""Finding and loading libbyteps.so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import byteps
import pytest
from byteps import _native
from jobs import clean_environment


def _import(library: Path) -> str:
    """What importing byteps with this library prints on stderr; it must fail."""
    done = subprocess.run(
        [sys.executable, "-c", "import byteps"],
        env=clean_environment(BYTEPS_LIBRARY=str(library)),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert str(library) in done.stderr
    assert "from BYTEPS_LIBRARY" in done.stderr
    return done.stderr


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in _import(tmp_path / "libbyteps.so")


def test_a_library_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "libbyteps.so"
    path.write_text("not an ELF file, but long enough to be read as one" * 10)
    assert "invalid ELF header" in _import(path)


def test_a_library_whose_own_libraries_are_missing(tmp_path: Path) -> None:
    """As the wheel on a host without the Debian packages that it is linked with: these are named, not the wheel."""
    needed, path = tmp_path / "libsodium.so.999", tmp_path / "libbyteps.so"
    build = ["gcc", "-shared", "-x", "c", "/dev/null", "-x", "none", "-o"]
    subprocess.run([*build, str(needed), "-Wl,-soname,libsodium.so.999"], check=True, timeout=60)
    subprocess.run([*build, str(path), "-Wl,--no-as-needed", str(needed)], check=True, timeout=60)
    needed.unlink()
    said = _import(path)
    assert "libsodium.so.999: cannot open shared object file" in said
    assert "apt-get install libsodium23" in said
    assert "Install byteps again" not in said


def test_another_library() -> None:
    with pytest.raises(RuntimeError, match=r"libm\.so\.6 has no function bps_version"):
        _native.load("libm.so.6")


def test_version() -> None:
    major, minor, patch = byteps.__version__.split(".")
    assert (int(major), int(minor)) >= (0, 1)
    assert patch


def test_the_package_imports_no_framework() -> None:
    code = (
        "import sys, byteps; byteps.init(); assert byteps.size() == 1;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'tensorflow')))"
    )
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True, timeout=60)


def test_a_signal_while_libfabric_is_loaded_is_python_s() -> None:
    """The providers' libraries would set handlers of their own, which end the process."""
    code = """
import ctypes, re, sys
caught = lambda: re.search("SigCgt:.*", open("/proc/self/status").read())[0]
import byteps
before = caught()
try:
    ctypes.CDLL("libfabric.so.1")
except OSError:
    sys.exit(77)
print(before, caught())
sys.exit(before != caught())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode == 77:
        pytest.skip("no libfabric")
    assert done.returncode == 0, done


def test_the_extension_module_shows_its_entry_point_alone() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(_native.__file__)], check=True, capture_output=True, text=True
    ).stdout
    # Small letters are local symbols, which the linker keeps in the table but which cannot be bound to.
    assert [line.split()[-1] for line in listed.splitlines() if line.split()[1].isupper()] == ["PyInit__native"]
    needed = subprocess.run(["objdump", "-p", str(_native.__file__)], check=True, capture_output=True, text=True).stdout
    assert "libbyteps" not in needed
