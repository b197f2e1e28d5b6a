"""The steps of docker/Dockerfile as docker/prove reads them. docker/prove itself takes minutes: it is run by hand."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

DOCKER = pathlib.Path(__file__).resolve().parents[2] / "docker"


@pytest.fixture(scope="module")
def prove() -> ModuleType:
    loader = SourceFileLoader("docker_prove", str(DOCKER / "prove"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def test_continued_lines_and_comments(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# none\nARG A=1\nFROM debian:${A} AS x\n\nRUN one \\\n# between\n && two\n")
    assert list(prove.instructions(file)) == [("ARG", "A=1"), ("FROM", "debian:${A} AS x"), ("RUN", "one   && two")]
    assert prove.expand("debian:${A}", {"A": "1"}) == "debian:1"


def test_what_images_copy_is_there(prove: ModuleType) -> None:
    """Of each other, or of the repository."""
    stages: list[str] = []
    for name, rest in prove.instructions(DOCKER / "Dockerfile"):
        if name == "FROM":
            stages.append(rest.rpartition(" ")[2])
        if name == "COPY":
            *paths, _ = rest.split()
            if paths[0].startswith("--from="):
                assert paths[0].partition("=")[2] in stages[:-1]
            else:
                assert all((DOCKER.parent / path).exists() for path in paths), rest
    assert stages == ["build", "server", "worker"]


def test_a_step_that_is_not_known(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    build = prove.Build(tmp_path, {}, {})
    with pytest.raises(SystemExit, match="VOLUME is not known"):
        build._step(prove.Stage(tmp_path, {}), "VOLUME", "/data")
