"""The smallest trainer in C, built as its README says and run in jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from byteps.library import LIBRARY
from jobs import DEADLINE, clean_environment, launcher_command

_CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    assert compiler is not None
    program = tmp_path_factory.mktemp("trainer") / "trainer"
    library = Path(LIBRARY.path).resolve().parent
    subprocess.run(
        [
            *(
                compiler,
                "-std=c11",
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
                "-Werror",
                "-O2",
            ),
            *(f"-I{_CHECKOUT}", str(_CHECKOUT / "frameworks" / "c" / "trainer.c"), "-o", str(program)),
            *(f"-L{library}", "-lbyteps", "-lm", f"-Wl,-rpath,{library}"),
        ],
        check=True,
    )
    return str(program)


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=clean_environment(**variables), check=False, capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_in_a_job(trainer: str, workers: int, servers: int) -> None:
    done = _run([*launcher_command(workers, servers), trainer])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"step +\d+  loss \d\.\d+", done.stdout)) == 5
    assert re.search(rf"trainer: converged: .* {workers} workers, {servers} servers", done.stdout), done.stdout


def test_alone(trainer: str) -> None:
    done = _run([trainer])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 workers, 0 servers" in done.stdout


def test_an_error_is_said_and_is_the_exit_status(trainer: str) -> None:
    done = _run([trainer], BYTEPS_PARTITION_BYTES="abc")
    assert done.returncode == 2
    assert "BYTEPS_PARTITION_BYTES" in done.stderr
    assert "abc" in done.stderr
