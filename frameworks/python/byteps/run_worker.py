"""`python -m byteps.run_worker`: a worker of byteps.run(); see runner.py."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Client, Connection
from typing import Any

import byteps
from byteps.runner import ADDRESSES, SECRET, _pickled


def main() -> int:
    """Fetches the function, calls it, and brings back what it returns."""
    connection = _connect()
    place = (int(os.environ.get("DMLC_WORKER_ID", "0")), int(os.environ.get("BYTEPS_LOCAL_RANK", "0")))
    try:
        function, args, kwargs = pickle.loads(connection.recv_bytes())
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


def _rank(place: tuple[int, int]) -> int | None:
    """Of this worker; None if it is not known yet: other hosts may have more workers than this one."""
    with contextlib.suppress(Exception):
        if byteps.is_initialized():
            return byteps.rank()
    return place[1] if os.environ.get("DMLC_NUM_WORKER", "1") == "1" else None


def _connect() -> Connection:
    # Of the addresses of the caller the one by which ssh came is the surest.
    named = [each.rpartition(":")[::2] for each in os.environ[ADDRESSES].split(",")]
    came_from = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    if came_from and named:
        named.insert(0, (came_from, named[0][1]))
    errors = []
    for host, port in named:
        try:
            return Client((host, int(port)), authkey=os.environ[SECRET].encode())
        except OSError as error:
            errors.append(f"{host}:{port}: {error}")
    sys.exit(f"byteps.run: the process that called it cannot be reached: {'; '.join(errors)}")


def _pickled_error(error: BaseException) -> bytes | None:
    try:
        return _pickled(error)
    except Exception:  # Some exceptions hold what cannot be pickled.
        return None


if __name__ == "__main__":
    sys.exit(main())
