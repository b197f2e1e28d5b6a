"""`python -m byteps.run_worker`: a worker of byteps.run(); see runner.py."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import traceback
from multiprocessing import ProcessError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import byteps
from byteps.launcher.addresses import host_port
from byteps.runner import _GREETING_SECONDS, ADDRESSES, LOOPBACK, SECRET, _give_up_reading_after, _pickled

_REACH_SECONDS = 5.0  # for one address of several, of which some lead nowhere


def main() -> int:
    """Fetches the function, calls it, and brings back what it returns."""
    connection = _connect()
    place = (_number("DMLC_WORKER_ID", 0), _number("BYTEPS_LOCAL_RANK", 0))
    task = connection.recv_bytes()
    # Who of how many we are: without our result the others must not pass for all.
    connection.send_bytes(pickle.dumps((place[0], _number("DMLC_NUM_WORKER", 1), _number("BYTEPS_LOCAL_SIZE", 1))))
    try:
        function, args, kwargs = pickle.loads(task)
        value = _pickled(function(*args, **kwargs))
        answer: tuple[Any, ...] = (place, _rank(place), True, value)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        answer = (place, _rank(place), False, (traceback.format_exc(), _pickled_error(error)))
        code = 1
    connection.send_bytes(pickle.dumps(answer))
    connection.recv_bytes()  # It was taken: only then may the launcher hear of our end.
    return code


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def _rank(place: tuple[int, int]) -> int | None:
    """Of this worker; None if it is not known yet: other hosts may have more workers than this one."""
    with contextlib.suppress(Exception):
        if byteps.is_initialized():
            return byteps.rank()
    return place[1] if os.environ.get("DMLC_NUM_WORKER", "1") == "1" else None


def _connect() -> Connection:
    named = [each.rpartition(":")[::2] for each in os.environ[ADDRESSES].split(",")]
    # On another host that by which ssh came is the surest; on that of the caller it is the user's own login.
    came_from = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    if came_from and named[0][0] != LOOPBACK:
        named.insert(0, (came_from, named[0][1]))
    errors = []
    for host, port in named:
        try:
            return _client((host, int(port)), os.environ[SECRET].encode())
        except (OSError, EOFError, ProcessError) as error:  # no answer, or that of another program
            errors.append(f"{host_port(host, int(port))}: {error or type(error).__name__}")
    sys.exit(f"byteps.run: the process that called it cannot be reached: {'; '.join(errors)}")


def _client(address: tuple[str, int], secret: bytes) -> Connection:
    """As multiprocessing's Client, which waits for minutes where packets go nowhere."""
    with socket.create_connection(address, timeout=_REACH_SECONDS) as probe:
        probe.settimeout(None)
        connection = Connection(probe.detach())
    try:
        _give_up_reading_after(connection, _GREETING_SECONDS)
        answer_challenge(connection, secret)
        deliver_challenge(connection, secret)
        _give_up_reading_after(connection, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def _pickled_error(error: BaseException) -> bytes | None:
    try:
        return _pickled(error)
    except Exception:  # Some exceptions hold what cannot be pickled.
        return None


if __name__ == "__main__":
    sys.exit(main())
