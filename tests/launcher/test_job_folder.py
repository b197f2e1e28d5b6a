"""The folder of a job among the temporary files."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import pytest
from launching import Spawn, wait_until

from launcher import job_folder
from launcher.failure import LaunchError
from launcher.job_folder import JobFolder

_CHECKOUT = pathlib.Path(job_folder.__file__).parents[1]


def test_it_holds_the_token(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with JobFolder() as folder:
        file = folder.write_token("a secret")
        assert file.read_text() == "a secret\n" and file.parent.parent == tmp_path
        assert (file.stat().st_mode & 0o777, folder.path.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not list(tmp_path.iterdir())


# A launch is several processes; the last that lives holds the folder. "removed": each removes it, the child first.
_LAUNCH = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from launcher.job_folder import JobFolder
folder = JobFolder()
folder.write_token()
child = os.fork()
os.write(1, f"{os.getpid()} {folder.path}\\n".encode())
if child:
    os.waitpid(child, 0)
sys.stdin.read()
folder.remove()
os.write(1, b"removed\\n")
"""


class _Holders:
    """Two processes that hold a folder, and the one that removes it behind them."""

    def __init__(self, spawn: Spawn) -> None:
        self.input, ours = os.pipe()
        self.launch = spawn(sys.executable, "-c", _LAUNCH, str(_CHECKOUT), stdin=self.input)
        os.close(self.input)
        self.input = ours
        self.launch.wait_for("\n", 2)
        lines = [line.split() for line in self.launch.stdout.splitlines()]
        self.folder = pathlib.Path(lines[0][1])
        self.parent = self.launch.process.pid
        (self.child,) = {int(pid) for pid, _ in lines} - {self.parent}
        (self.remover,) = set(self.launch.processes()) - {self.parent, self.child}

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        if pid == self.parent:
            self.launch.wait()
        wait_until(lambda: pid not in self.launch.processes(), lambda: f"{pid} lives")


@pytest.fixture
def holders(spawn: Spawn) -> Iterator[_Holders]:
    made = _Holders(spawn)
    yield made
    os.close(made.input)


def test_all_processes_of_a_launch_are_killed(holders: _Holders) -> None:
    os.kill(holders.remover, signal.SIGTERM)  # as a batch system sends it to all
    holders.kill(holders.parent)
    assert (holders.folder / "token").exists(), "the other process lives"
    holders.kill(holders.child)
    wait_until(lambda: not holders.folder.exists(), lambda: "the folder with the token is left")
    holders.launch.wait_gone()


def test_a_folder_that_was_removed_leaves_no_process(spawn: Spawn) -> None:
    holders = _Holders(spawn)
    os.close(holders.input)
    holders.launch.wait_for("removed\n", 1)
    assert not holders.folder.exists()
    wait_until(lambda: holders.remover not in holders.launch.processes(), lambda: "the remover lives")
    assert holders.launch.wait() == 0
    assert not holders.launch.processes()


def test_the_remover_is_killed_with_the_launch(holders: _Holders, monkeypatch: pytest.MonkeyPatch) -> None:
    place = holders.folder.parent
    monkeypatch.setenv("TMPDIR", str(place))
    others = [place / name for name in ("bpslaunch-new", "byteps-other")]
    for folder in others:
        folder.mkdir()
    for folder in (holders.folder, others[1]):
        os.utime(folder, (0, 0))
    holders.kill(holders.remover)
    holders.kill(holders.parent)
    with JobFolder():
        assert (holders.folder / "token").exists(), "the other process lives"
    holders.kill(holders.child)
    with JobFolder() as own:
        assert sorted(place.iterdir()) == sorted([own.path, *others])
    for folder in others:
        folder.rmdir()


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
