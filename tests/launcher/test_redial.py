"""ssh daemons that turn logins away, since many come at once: by a client that stands for ssh."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import pytest
from launching import Launch, Start

# Counts its calls, is turned away so often, and then runs here what it is to run there.
CLIENT = """\
#!/bin/sh
echo called >> {folder}/calls
if [ "$(wc -l < {folder}/calls)" -le {times} ]; then
    echo "{said}" >&2
    exit {code}
fi
for last; do :; done
exec sh -c "$last"
"""
RESET = "kex_exchange_identification: read: Connection reset by peer"


@pytest.fixture
def launch(start: Start, tmp_path: pathlib.Path) -> Callable[..., Launch]:
    def run(*words: str, times: int, said: str = RESET, code: int = 255) -> Launch:
        client = tmp_path / "ssh"
        client.write_text(CLIENT.format(folder=tmp_path, times=times, said=said, code=code))
        client.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        return start("--hosts", "elsewhere", *words, "--", "echo", "trains", variables={"PATH": path})

    return run


def calls(folder: pathlib.Path) -> int:
    return (folder / "calls").read_text().count("called")


@pytest.mark.parametrize("said", [RESET, "Connection closed by 10.0.0.1 port 22"])
def test_a_host_that_takes_the_third_call(launch: Callable[..., Launch], tmp_path: pathlib.Path, said: str) -> None:
    job = launch(times=2, said=said)
    assert job.wait() == 0, job.stderr
    assert "[worker 0] trains" in job.stdout and calls(tmp_path) == 3
    assert job.stderr.count("raise its MaxStartups): calling again in ") == 2, job.stderr


def test_a_host_that_takes_none(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    job = launch(times=9)
    assert job.wait() == 255
    assert "trains" not in job.stdout and calls(tmp_path) == 3
    hint = "(its ssh daemon, or that of a jump host, takes no more logins at a time: raise its MaxStartups)"
    assert f"host elsewhere could not be reached: ssh exited with code 255 {hint} after" in job.stderr, job.stderr


@pytest.mark.parametrize("said, code", [("Permission denied (publickey).", 255), (RESET, 1)])
def test_what_another_call_does_not_change(
    launch: Callable[..., Launch], tmp_path: pathlib.Path, said: str, code: int
) -> None:
    job = launch(times=1, said=said, code=code)
    assert job.wait() == code
    assert calls(tmp_path) == 1 and "calling again" not in job.stderr, job.stderr


def test_check_of_a_host_that_takes_the_second_call(launch: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    check = launch("--check", times=1)
    check.wait()
    assert "FAIL  elsewhere: could not be reached" not in check.stdout, check.stdout
    assert calls(tmp_path) == 2
    (tmp_path / "calls").unlink()
    refused = launch("--check", times=9)
    assert refused.wait() == 1
    assert "FAIL  elsewhere: could not be reached: ssh exited with code 255 (its ssh daemon" in refused.stdout
    assert calls(tmp_path) == 3
