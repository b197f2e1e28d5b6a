"""Which processes are known to start workers: by their names, and torchrun by its command line."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from launcher.environments.launcher_process import is_launcher

# Says that it runs, and ends with its input.
WAITS = "import sys\nsys.stdout.write('up\\n')\nsys.stdout.flush()\nsys.stdin.read()\n"
# The same for a shell, which stays a shell.
SHELL_WAITS = "echo up; read line; :"


def is_one(*words: str, folder: pathlib.Path | None = None) -> bool:
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            return is_launcher(process.pid)
        finally:
            process.stdin.close()


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    """A script within a folder whose name has that of a launcher in it."""
    path = tmp_path / "torchrun-tests" / "torch.distributed" / "train"
    path.parent.mkdir(parents=True)
    path.write_text(WAITS)
    return path


def test_a_script_in_a_folder_with_the_name_of_torchrun(script: pathlib.Path) -> None:
    assert not is_one(sys.executable, str(script))
    script.write_text(SHELL_WAITS)
    assert not is_one("sh", str(script))


def test_an_argument_with_the_name_of_torchrun(script: pathlib.Path) -> None:
    for argument in ("torchrun", "--like=torchrun", "-m", "torch.distributed.run"):
        assert not is_one(sys.executable, str(script), argument)
        assert not is_one("sh", "-c", SHELL_WAITS, argument)


def test_torchrun_itself(script: pathlib.Path) -> None:
    torchrun = script.rename(script.with_name("torchrun"))
    assert is_one(sys.executable, str(torchrun), "--nproc-per-node", "2")
    assert is_one(sys.executable, "-u", "-X", "utf8", str(torchrun))


@pytest.mark.parametrize("module", ["run", "launch"])
@pytest.mark.parametrize("option", ["-m", "-um"])
def test_torchrun_as_a_module(script: pathlib.Path, module: str, option: str) -> None:
    package = script.parent.parent / "torch" / "distributed"
    package.mkdir(parents=True)
    for name in ("torch", "torch/distributed"):
        (script.parent.parent / name / "__init__.py").touch()
    (package / f"{module}.py").write_text(WAITS)
    assert is_one(sys.executable, option, f"torch.distributed.{module}", "train.py", folder=script.parent.parent)
