"""The folder of a job among the temporary files."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from launcher import job_folder
from launcher.failure import LaunchError
from launcher.job_folder import JobFolder


def test_it_holds_the_token(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with JobFolder() as folder:
        file = folder.write_token("a secret")
        assert file.read_text() == "a secret\n" and file.parent.parent == tmp_path
        assert (file.stat().st_mode & 0o777, folder.path.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not list(tmp_path.iterdir())


def test_what_launches_have_left_that_were_killed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    source = (
        "import os, sys; from launcher.job_folder import JobFolder\n"
        "folder = JobFolder(); folder.write_token()\n"
        # A launch is several processes: the last that lives holds the folder.
        "os.fork(); os.write(1, f'{os.getpid()} {folder.path}\\n'.encode()); sys.stdin.read()"
    )
    checkout = pathlib.Path(job_folder.__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", source], cwd=checkout, stdin=-1, stdout=-1, text=True) as launch:
        assert launch.stdin is not None and launch.stdout is not None
        lines = [launch.stdout.readline().split() for _ in range(2)]
        pids, left = [int(pid) for pid, _ in lines], pathlib.Path(lines[0][1])
        others = [tmp_path / name for name in ("bpslaunch-new", "byteps-other")]
        for folder in others:
            folder.mkdir()
        for folder in (left, others[1]):
            os.utime(folder, (0, 0))
        os.kill(launch.pid, signal.SIGKILL)
        launch.wait()
        with JobFolder():
            assert (left / "token").exists(), "the other process lives"
        os.kill(next(pid for pid in pids if pid != launch.pid), signal.SIGKILL)
        assert launch.stdout.read() == "", "it has ended, too"
        with JobFolder() as own:
            assert sorted(tmp_path.iterdir()) == sorted([own.path, *others])


def test_no_place_for_temporary_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no"))
    monkeypatch.setattr(job_folder, "_PLACES", ("/no/such",))
    with pytest.raises(LaunchError, match=r"no folder for temporary files in .*, /no/such: .* by TMPDIR"):
        JobFolder()


def test_a_place_that_is_full(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "mkdir", full)
    with pytest.raises(LaunchError, match="No space left on device"):
        JobFolder()
