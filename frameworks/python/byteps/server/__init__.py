"""`python -c "import byteps.server"`: runs the server, or the coordinator, until it ends; DMLC_ROLE says which.

This is how programs of the original BytePS start one. The program itself is `byteps_server`, which bpslaunch starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from byteps.launcher import missing_library

_ROLES = ("server", "scheduler")
_NOT_LOADED = 127  # how the loader ends a program that lacks a library


def program() -> Path:
    """Where the program is: BYTEPS_SERVER_BINARY, else in this package. Raises ImportError if it is not there."""
    named = os.environ.get("BYTEPS_SERVER_BINARY")
    path = Path(named) if named else Path(__file__).parent.parent / "bin" / "byteps_server"
    if not path.exists():
        raise ImportError(
            f"the server's program {path} does not exist. Install byteps again, or set BYTEPS_SERVER_BINARY"
        )
    return path


def run() -> None:
    """Runs the program and waits for it. Signals to end go on to it. Raises SystemExit if it fails."""
    process = subprocess.Popen([str(program())])

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    earlier = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = process.wait()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if status == _NOT_LOADED:
        # Its output was not ours to read: the loader says it again.
        again = subprocess.run([str(program())], capture_output=True, text=True, check=False)
        if todo := missing_library.advice(again.stderr.splitlines()):
            print(todo, file=sys.stderr)
    if status != 0:
        raise SystemExit(status if status > 0 else 128 - status)


_role = os.environ.get("DMLC_ROLE", "")
if _role not in _ROLES:
    raise ImportError(
        f"import byteps.server runs the server or the coordinator; DMLC_ROLE is {_role!r}, and must be one of "
        f"{', '.join(_ROLES)}"
    )
run()
