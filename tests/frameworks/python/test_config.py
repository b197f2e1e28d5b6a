"""python -m byteps.config: a program and a plugin are built with what it says, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = r"""
#include <byteps/byteps.h>
#include <stdio.h>
int main(void) {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  bps_status* error = bps_open(&args, &session);
  if (error != NULL) return fprintf(stderr, "%s\n", bps_status_message(error)), 1;
  printf("byteps %s, alone\n", bps_version_string());
  bps_shutdown(session, 1000);
  bps_close(session);
  return 0;
}
"""
_EXAMPLE = (
    Path(__file__).parents[3] / "examples" / "plugins" / "scheduler_smallest_first" / "scheduler_smallest_first.c"
)
_STRICT = ("-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror")


def _config(*words: str) -> str:
    command = [sys.executable, "-m", "byteps.config", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_a_program_is_built_and_runs(tmp_path: Path) -> None:
    source, program = tmp_path / "hello.c", tmp_path / "hello"
    source.write_text(_PROGRAM)
    flags = _config("--cflags", "--libs").split()
    subprocess.run(["cc", *_STRICT, str(source), "-o", str(program), *flags], check=True, timeout=120)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    done = subprocess.run([program], env=clean, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("byteps ")
    dynamic = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "[libbyteps.so.1]" in dynamic


def test_a_plugin_is_built(tmp_path: Path) -> None:
    plugin = tmp_path / "libbyteps_scheduler_smallest_first.so"
    command = ["cc", *_STRICT, "-shared", "-fPIC", *_config("--includes").split(), str(_EXAMPLE), "-o", str(plugin)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.parametrize("option", ["--cmake-dir", "--pkgconfig-dir", "--plugin-dir"])
def test_folders_exist(option: str) -> None:
    assert any(Path(_config(option)).iterdir())


def test_wrong_calls_are_errors() -> None:
    for words in ([], ["--nonsense"]):
        done = subprocess.run(
            [sys.executable, "-m", "byteps.config", *words], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert "--cmake-dir" in done.stderr
