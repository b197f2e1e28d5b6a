"""The source distribution: all that Git knows, under one folder, with its metadata."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

_CHECKOUT = Path(__file__).parents[2]


def _backend(folder: Path) -> ModuleType:
    path = folder / "tools" / "packaging" / "bazel_backend.py"
    spec = importlib.util.spec_from_file_location("bazel_backend", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {member.name for member in tar.getmembers()}


@pytest.mark.skipif(not (_CHECKOUT / ".git").exists(), reason="this is no Git checkout")
def test_it_has_every_tracked_file_and_can_be_made_from_itself(tmp_path: Path) -> None:
    backend = _backend(_CHECKOUT)
    archive = tmp_path / backend.build_sdist(str(tmp_path))
    folder = f"byteps-{backend.release()}"
    names = _names(archive)
    tracked = subprocess.run(["git", "ls-files"], cwd=_CHECKOUT, check=True, capture_output=True, text=True).stdout
    present = {name for name in tracked.split("\n") if name and (_CHECKOUT / name).is_file()}
    assert {f"{folder}/{name}" for name in present} | {f"{folder}/PKG-INFO"} == names

    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(
            tmp_path / "unpacked"
        )
    unpacked = tmp_path / "unpacked" / folder
    metadata = (unpacked / "PKG-INFO").read_text()
    assert metadata.startswith("Metadata-Version: 2.1\nName: byteps\n")
    assert "# BytePS" in metadata
    (unpacked / "bazel-bin").mkdir()
    (unpacked / "bazel-bin" / "built").write_text("not a source")
    (tmp_path / "again").mkdir()
    again = _backend(unpacked).build_sdist(str(tmp_path / "again"))
    assert _names(tmp_path / "again" / again) == names


def _has_disk_cache() -> bool:
    """Whether Bazel keeps what it compiles beyond a workspace: without, a fresh one compiles everything."""
    files = (Path.home() / ".bazelrc", Path("/etc/bazel.bazelrc"))
    return any(re.search(r"--(disk|remote)_cache=\S", file.read_text()) for file in files if file.exists())


@pytest.mark.skipif(shutil.which("bazel") is None, reason="there is no Bazel on this machine: tools/setup installs it")
@pytest.mark.skipif(
    not _has_disk_cache() and "BPS_TEST_SDIST" not in os.environ,
    reason="without a --disk_cache in ~/.bazelrc it compiles all of BytePS again: BPS_TEST_SDIST=1 does that",
)
def test_pip_builds_a_wheel_of_it_that_works(tmp_path: Path) -> None:
    backend = _backend(_CHECKOUT)
    archive = tmp_path / backend.build_sdist(str(tmp_path))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "--no-index", "-w", str(tmp_path / "out"), str(archive)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [*pip, "wheel", *options],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert list(temporary.iterdir()) == []

    (wheel,) = (tmp_path / "out").iterdir()
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"byteps-{re.escape(backend.release())}-{tag}-{tag}-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as contents:
        (metadata,) = [name for name in contents.namelist() if name.endswith(".dist-info/METADATA")]
        assert "Requires-Python: >=3.9\n" in contents.read(metadata).decode()
        (tags,) = [name for name in contents.namelist() if name.endswith(".dist-info/WHEEL")]
        assert f"Tag: {wheel.stem.split('-', 2)[2]}\n" in contents.read(tags).decode()

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    target = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", "-t", target, wheel], check=True)
    said = subprocess.run(
        [python, "-c", _TRAINER],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
    )
    assert (said.returncode, said.stdout) == (0, f"{backend.release()} trained\n"), said.stderr


_TRAINER = """
import byteps
byteps.init()
values = bytearray([7] * 100)
byteps.push_pull(values, values, name="values", average=False)
assert values == bytearray([7] * 100)
byteps.shutdown()
print(byteps.__version__, "trained")
"""


@pytest.mark.parametrize(
    ("python", "needed"), [((3, 9), (2, 10)), ((3, 11), (2, 10)), ((3, 12), (2, 11)), ((3, 13), (2, 13))]
)
def test_an_old_pybind11_is_replaced_or_named(
    python: tuple[int, int], needed: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _backend(_CHECKOUT)
    monkeypatch.setattr(backend, "system_pybind11", lambda: needed)
    assert backend.missing_pybind11(python) == []
    assert backend.pybind11_flags(python) == []
    monkeypatch.setattr(backend, "system_pybind11", lambda: (needed[0], needed[1] - 1))
    assert backend.missing_pybind11(python) == [f"pybind11>={needed[0]}.{needed[1]}"]
    monkeypatch.setattr(backend, "installed_pybind11", lambda: Path("/there/include"))
    assert backend.pybind11_flags(python) == ["--repo_env=BYTEPS_PYBIND11_INCLUDE=/there/include"]
    monkeypatch.setattr(backend, "installed_pybind11", lambda: None)
    with pytest.raises(RuntimeError, match=rf"Python {python[0]}\.{python[1]}: pip install"):
        backend.pybind11_flags(python)


def test_headers_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _backend(_CHECKOUT)
    monkeypatch.setattr(backend, "sysconfig", SimpleNamespace(get_path=lambda name: str(tmp_path)))
    with pytest.raises(RuntimeError, match=rf"{re.escape(str(tmp_path))}: install them \(Debian: python3\.\d+-dev\)"):
        backend.build_wheel(str(tmp_path / "out"))
