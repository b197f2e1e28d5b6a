"""Jobs of more processes than the soft limit of open files allows: ours is raised, the trainers' is not."""

from __future__ import annotations

import pathlib
import resource
import socket
from collections.abc import Callable

import pytest
from launching import Start

SOFT = 64


def limited(hard: int | None = None) -> Callable[[], None]:
    """To be called in a child."""
    own = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, own))


@pytest.mark.parametrize("words", [["--workers", "24"], ["--hosts", "localhost:24"]])
def test_more_files_than_the_soft_limit(start: Start, tmp_path: pathlib.Path, words: list[str]) -> None:
    out = tmp_path / "out"
    job = start(*words, "--output-dir", str(out), "--", "sh", "-c", "ulimit -Sn", preexec_fn=limited())
    assert job.wait() == 0, job.stderr
    for rank in range(24):
        assert (out / f"worker{rank}.stdout").read_text() == f"{SOFT}\n", "the user's own"


def test_more_files_than_the_hard_limit(start: Start, tmp_path: pathlib.Path) -> None:
    """Nothing begins on the host whose files are there: those of the other one are not."""
    words = ["--hosts", "localhost", "--server-hosts", f"{socket.gethostname()}:30", "--verbose"]
    job = start(*words, "--output-dir", str(tmp_path / "out"), "--", "echo", "trains", preexec_fn=limited(SOFT))
    assert job.wait() == 2
    assert f"Too many open files: raise the limit of open files, {SOFT} here (ulimit -n)" in job.stderr, job.stderr
    assert "worker 0: pid" not in job.stderr and "trains" not in job.stdout
    job.wait_gone()
