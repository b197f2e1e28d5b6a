"""docker/Dockerfile as Docker builds it, where a Docker runs; docker/prove performs its steps without one."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_BUILD_SECONDS = 3600  # everything is compiled


@pytest.fixture(scope="module")
def docker() -> str:
    """The program; skips the test where it, or its daemon, is not here."""
    program = shutil.which("docker")
    if program is None:
        pytest.skip("docker is not here")
    try:
        found = subprocess.run([program, "version"], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("the daemon of Docker does not answer")
    if found.returncode != 0:
        pytest.skip(f"no daemon of Docker: {found.stderr.strip()}")
    return program


@pytest.mark.parametrize(
    "target, words, said", [("server", ["--version"], "byteps_server"), ("worker", ["--help"], "bpslaunch")]
)
def test_an_image_runs(docker: str, target: str, words: list[str], said: str) -> None:
    build = [docker, "build", "-f", "docker/Dockerfile", "--target", target, "--build-arg", "TORCH=", "--quiet", "."]
    built = subprocess.run(build, capture_output=True, text=True, check=False, cwd=_CHECKOUT, timeout=_BUILD_SECONDS)
    assert built.returncode == 0, built.stderr
    image = built.stdout.strip()
    try:
        ran = subprocess.run([docker, "run", "--rm", image, *words], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0 and said in ran.stdout, ran.stdout + ran.stderr
    finally:
        subprocess.run([docker, "image", "rm", image], capture_output=True, check=False, timeout=120)
