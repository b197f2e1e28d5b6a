"""byteps.run(): a function as a job."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import byteps
import pytest
from byteps import run_worker, runner
from native_push import push_pull_doubles

# The functions of this file are pickled by value, where the workers cannot import it.
cloudpickle = pytest.importorskip("cloudpickle")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DMLC_", "BYTEPS_")) and name not in ("BYTEPS_LIBRARY", "BYTEPS_PLUGIN_PATH"):
            monkeypatch.delenv(name)
    support = str(Path(__file__).resolve().parents[1] / "support")
    monkeypatch.setenv("PYTHONPATH", f"{support}:{os.environ.get('PYTHONPATH', '')}")


def _sum(scale: float, *, offset: float = 0.0) -> tuple[int, float]:
    byteps.init()
    request, memory = push_pull_doubles("x", [scale * byteps.rank()])
    request.wait()
    return byteps.rank(), memory[0] + offset


def test_results_by_rank() -> None:
    assert byteps.run(_sum, args=(2.0,), kwargs={"offset": 1.0}, num_workers=3) == [(rank, 7.0) for rank in range(3)]


def test_hosts_and_servers() -> None:
    assert byteps.run(_sum, args=(1.0,), hosts=["localhost:2"], num_servers=1) == [(0, 1.0), (1, 1.0)]


def test_a_lambda_and_a_variable() -> None:
    assert byteps.run(lambda: os.environ["MINE"], env={"MINE": "a b"}, num_workers=2) == ["a b", "a b"]


def _fail() -> None:
    byteps.init()
    if byteps.rank() == 1:
        raise KeyError("no such data")
    byteps.barrier()


def test_an_exception_of_a_worker() -> None:
    with pytest.raises(byteps.WorkerError, match="no such data") as caught:
        byteps.run(_fail, num_workers=2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in _fail" in caught.value.remote_traceback


def test_a_worker_that_is_gone() -> None:
    with pytest.raises(byteps.WorkerError, match="ended with code 9"):
        byteps.run(lambda: os._exit(9), num_workers=2)


def _leave_early() -> int:
    if os.environ["BYTEPS_LOCAL_RANK"] == "1":
        os._exit(0)
    return int(os.environ["BYTEPS_LOCAL_RANK"])


@pytest.mark.parametrize("where", [{"num_workers": 3}, {"hosts": "localhost:3"}])
def test_a_worker_that_ends_well_without_a_result(where: dict[str, Any]) -> None:
    """The results of the ranks behind it must not pass for those of others."""
    with pytest.raises(byteps.WorkerError, match="there is no result of rank 1: "):
        byteps.run(_leave_early, **where)


def test_no_variable_of_it_is_unknown(capfd: pytest.CaptureFixture[str]) -> None:
    """Workers, coordinator and servers complain of variables with our prefixes that they do not know."""
    assert byteps.run(_sum, args=(1.0,), num_workers=2, num_servers=1) == [(0, 1.0), (1, 1.0)]
    captured = capfd.readouterr()
    assert "is not a variable" not in captured.out + captured.err


def test_the_job_ends_with_the_process_that_has_called(tmp_path: Path) -> None:
    """Killed, as a notebook's kernel is that runs out of memory."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time, byteps\n"
        "def work(folder):\n"
        "    open(f'{folder}/{os.getpid()}.worker', 'w').close()\n"
        "    time.sleep(600)\n"
        "byteps.run(work, args=(sys.argv[1],), num_workers=2)\n"
    )
    with subprocess.Popen([sys.executable, str(program), str(tmp_path)], stderr=subprocess.DEVNULL) as caller:
        try:
            assert _within(60, lambda: len(list(tmp_path.glob("*.worker"))) == 2)
        finally:
            caller.kill()
    workers = [int(file.stem) for file in tmp_path.glob("*.worker")]
    assert _within(30, lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="must be callable"):
        byteps.run("train")  # type: ignore[arg-type]
    with pytest.raises(byteps.WorkerError):
        byteps.run(_sum, args=(1.0,), num_workers=0)


def test_nothing_of_it_is_on_a_command_line(tmp_path: Path) -> None:
    words = byteps.run(lambda: subprocess.check_output(["ps", "-eo", "args"], text=True))[0]
    assert "byteps.run_worker" in words and "BYTEPS_RUN_SECRET" not in words


def test_a_stranger_that_is_silent_keeps_no_worker_waiting() -> None:
    with runner._Desk(b"the task", remote=False) as desk:
        address = ("127.0.0.1", int(desk.variables[runner.ADDRESSES].rpartition(":")[2]))
        tasks: list[bytes] = []

        def fetch() -> None:
            with Client(address, authkey=desk.variables[runner.SECRET].encode()) as connection:
                tasks.append(connection.recv_bytes())

        # One is silent, one has another secret, one closes at once.
        with socket.create_connection(address), pytest.raises(AuthenticationError):
            socket.create_connection(address).close()
            worker = threading.Thread(target=fetch, daemon=True)
            worker.start()
            worker.join(60)
            assert tasks == [b"the task"]
            Client(address, authkey=b"another")


def _refuses(port: int) -> bool:
    try:
        socket.create_connection((runner.LOOPBACK, port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_it_is_left(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    desks: list[runner._Desk] = []

    class Kept(runner._Desk):
        def __enter__(self) -> runner._Desk:
            desks.append(self)
            return super().__enter__()

    monkeypatch.setattr(runner, "_Desk", Kept)
    before = set(threading.enumerate())
    if fails:
        with pytest.raises(byteps.WorkerError, match="ended with code 9"):
            byteps.run(lambda: os._exit(9))
    else:
        assert byteps.run(lambda: 1) == [1]
    assert set(threading.enumerate()) <= before
    assert _refuses(int(desks[0].variables[runner.ADDRESSES].rpartition(":")[2]))


@pytest.mark.parametrize("remote", [False, True])
def test_a_silent_stranger_does_not_hold_the_end_up(remote: bool) -> None:
    before = set(threading.enumerate())
    began = time.monotonic()
    with runner._Desk(b"the task", remote) as desk:
        port = int(desk.variables[runner.ADDRESSES].rpartition(":")[2])
        strangers = [socket.create_connection((runner.LOOPBACK, port)) for _ in range(3)]
        for stranger in strangers:
            stranger.settimeout(60)
            assert stranger.recv(1)  # The desk asks for the secret.
    assert time.monotonic() - began < runner._GREETING_SECONDS
    assert set(threading.enumerate()) <= before
    assert _refuses(port)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("came_from", ["::1", "127.0.0.1"])
def test_a_worker_comes_by_either_protocol(monkeypatch: pytest.MonkeyPatch, came_from: str) -> None:
    """As ssh came to its host: nothing else of what the desk names needs to lead there."""
    if ":" in came_from and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with runner._Desk(b"the task", remote=True) as desk:
        port = desk.variables[runner.ADDRESSES].rpartition(":")[2]
        monkeypatch.setenv(runner.ADDRESSES, f"no-such-host.invalid:{port}")
        monkeypatch.setenv(runner.SECRET, desk.variables[runner.SECRET])
        monkeypatch.setenv("SSH_CONNECTION", f"{came_from} 4711 {came_from} 22")
        with run_worker._connect() as connection:
            assert connection.recv_bytes() == b"the task"


def test_a_system_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def refuse(address: tuple[str, int], *, family: int = socket.AF_INET, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, family=family, **options)

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr(socket, "create_server", refuse)
    with runner._listen_everywhere() as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection((runner.LOOPBACK, listener.getsockname()[1]), timeout=60).close()


def test_the_task_is_dropped() -> None:
    """Whoever keeps the desk, by a traceback for instance, does not keep the task, which may be large."""
    task = memoryview(b"the task")  # There are weak references to it, and none to bytes.
    gone = weakref.ref(task)
    with runner._Desk(task, remote=False) as desk:  # type: ignore[arg-type]
        del task
        assert gone() is not None
    assert gone() is None, desk
