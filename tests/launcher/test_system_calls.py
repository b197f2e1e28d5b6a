"""System calls that a Python lacks which was built with old headers."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess

import pytest

from launcher import system_calls


@pytest.fixture(params=["of Python", "of the kernel"])
def _with_and_without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "of the kernel":
        for name in ("memfd_create", "pidfd_open"):
            monkeypatch.delattr(os, name, raising=False)
        monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)


@pytest.mark.usefixtures("_with_and_without")
def test_a_file_of_memory() -> None:
    descriptor = system_calls.memfd_create("test")
    try:
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"a token")
        with open(f"/proc/{os.getpid()}/fd/{descriptor}", "rb") as file:
            assert file.read() == b"a token"
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("_with_and_without")
def test_a_process_by_its_descriptor() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        descriptor = system_calls.pidfd_open(process.pid)
        try:
            assert select.select([descriptor], [], [], 0)[0] == []
            system_calls.pidfd_send_signal(descriptor, signal.SIGTERM)
            assert select.select([descriptor], [], [], 60)[0] == [descriptor]
            assert process.wait() == -signal.SIGTERM
            with pytest.raises(ProcessLookupError):
                system_calls.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)


@pytest.mark.usefixtures("_with_and_without")
def test_no_such_process() -> None:
    with pytest.raises(OSError) as caught:
        system_calls.pidfd_open(2**22 + 1)
    assert caught.value.errno in (errno.ESRCH, errno.EINVAL)
