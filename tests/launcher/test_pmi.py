"""PMI's wire protocol, against a proxy of the test's own; test_mpi.py has the real ones."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from launcher.environments.pmi import PmiStore
from launcher.failure import LaunchError

# Writes a last line, and aborts at once. Arguments: the descriptor of PMI.
_RANK = """
import sys
from launcher.environments.pmi import PmiStore
store = PmiStore(int(sys.argv[1]), 1, 2)
store._ask("cmd=get_maxes", 1e9)
print("host b is lost", file=sys.stderr, flush=True)
store.abort(7)
print("aborted", flush=True)
"""


def serve(proxy: socket.socket, heard: list[str]) -> None:
    """Answers until the other side closes, or aborts."""
    with proxy, proxy.makefile("rw") as lines:
        for line in lines:
            heard.append(line.strip())
            if "abort" in line:
                return
            lines.write("cmd=answer rc=0\n")
            lines.flush()


def test_a_store_that_was_not_opened_has_nothing_to_abort() -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        PmiStore(ours.fileno(), 0, 2).abort(1)
        theirs.setblocking(False)
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(100) == b""


def test_what_was_written_last_is_read_before_the_abort() -> None:
    theirs, ours = socket.socketpair()
    heard: list[str] = []
    thread = threading.Thread(target=serve, args=(theirs, heard))
    thread.start()
    with ours:
        process = subprocess.Popen(
            [sys.executable, "-c", _RANK, str(ours.fileno())],
            pass_fds=[ours.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])},
        )
    assert process.stdout is not None and process.stderr is not None
    assert process.stderr.readline() == b"host b is lost\n"
    output = process.communicate(timeout=60)
    thread.join(60)
    assert not thread.is_alive(), heard
    assert output == (b"aborted\n", b"") and process.returncode == 0
    assert heard == ["cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_maxes", "cmd=abort exitcode=7"]


def store_of(proxy: socket.socket) -> None:
    """Keeps values as Hydra does: the first 1023 characters of each."""
    values: dict[str, str] = {}
    with proxy, proxy.makefile("rw") as lines:
        for line in lines:
            asked = dict(word.partition("=")[::2] for word in line.split())
            if asked["cmd"] == "put":
                values[asked["key"]] = asked["value"][:1023]
            value = values.get(asked.get("key", ""), "")
            lines.write(f"cmd=answer rc=0 kvsname=space value={value}\n")
            lines.flush()


@pytest.mark.parametrize("length", [0, 1, 800, 801, 5000])
def test_long_values(length: int) -> None:
    theirs, ours = socket.socketpair()
    thread = threading.Thread(target=store_of, args=(theirs,))
    thread.start()
    store = PmiStore(ours.fileno(), 0, 2)
    value = "".join(chr(ord("a") + index % 26) for index in range(length))
    store.put("byteps-own-0", value)
    assert store.get("byteps-own-0", 0) == value
    store.close()
    ours.close()
    thread.join(60)


def test_a_connection_that_is_used_up() -> None:
    theirs, ours = socket.socketpair()
    theirs.close()
    store = PmiStore(ours.detach(), 0, 2)  # which closes it
    with pytest.raises(LaunchError, match="one program of each rank"):
        store.fence(time.monotonic() + 10)
