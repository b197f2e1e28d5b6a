"""BytePS from another Bazel workspace: what docs/bazel.md says, word for word, builds a trainer and a plugin."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_HELLO = _CHECKOUT / "tests" / "tools" / "install" / "hello" / "hello.c"
_PLUGIN = _CHECKOUT / "examples" / "plugins" / "scheduler_smallest_first" / "scheduler_smallest_first.c"

# Everything of the library is compiled for this workspace: minutes, where no disk cache has it.
_DEADLINE = 1800


def _blocks() -> tuple[str, str, str]:
    """The WORKSPACE, .bazelrc and BUILD of the page."""
    text = (_CHECKOUT / "docs" / "bazel.md").read_text()
    found = re.findall(r"[Ii]n `(WORKSPACE|\.bazelrc|BUILD)`[^\n]*(?:\n[^\n ][^\n]*)*:\n\n((?:    .*\n|\n)+)", text)
    blocks = {name: textwrap.dedent(block) for name, block in found}
    return blocks["WORKSPACE"], blocks[".bazelrc"], blocks["BUILD"]


def _bazel(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bazel", f"--output_user_root={folder / 'output'}", "--host_jvm_args=-Xmx700m", *arguments]
    return subprocess.run(
        command,
        cwd=folder / "trainer",
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """The folder of the trainer, with the checkout beside it."""
    if shutil.which("bazel") is None:
        pytest.skip("there is no Bazel on this machine: tools/setup installs Debian's")
    folder = tmp_path / "trainer"
    folder.mkdir()
    (tmp_path / "byteps").symlink_to(_CHECKOUT)
    for name, text in zip(("WORKSPACE", ".bazelrc", "BUILD"), _blocks()):
        (folder / name).write_text(text)
    shutil.copy(_HELLO, folder / "trainer.c")
    (folder / "mine.c").write_text(_PLUGIN.read_text().replace('"smallest_first"', '"mine"'))
    try:
        yield folder
    finally:
        _bazel(tmp_path, "shutdown")
        # Bazel's outputs are read-only.
        subprocess.run(["chmod", "-R", "u+w", str(tmp_path)], check=False)
        shutil.rmtree(tmp_path / "output", ignore_errors=True)


def test_what_the_page_says_builds_and_runs(workspace: Path) -> None:
    # A header on its own, too; and unoptimised: what is compiled is the same, sooner.
    with (workspace / "BUILD").open("a") as build:
        build.write('\ncc_library(name = "header", srcs = ["header.c"], deps = ["@byteps//abi:byteps"])\n')
    (workspace / "header.c").write_text('#include "abi/byteps.h"\nint answer(void) { return BPS_ABI_MAJOR; }\n')
    done = _bazel(workspace.parent, "build", "--copt=-O0", "--copt=-g0", "//...")
    assert done.returncode == 0, done.stdout[-8000:]

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    program = workspace / "bazel-bin" / "trainer"
    said = subprocess.run([program], check=False, capture_output=True, text=True, env=environment, timeout=60)
    assert (said.returncode, said.stdout[:18]) == (0, "hello from BytePS "), said.stdout + said.stderr

    plugin = workspace / "bazel-bin" / "libbyteps_scheduler_mine.so"
    listed = subprocess.run(["nm", "-D", "--defined-only", plugin], check=True, capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["bps_scheduler_plugin_v1"]
    assert ctypes.CDLL(str(plugin)).bps_scheduler_plugin_v1 is not None
