"""The source distribution: all that Git knows, under one folder, with its metadata."""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

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
