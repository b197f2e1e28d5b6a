"""The coordinator and the servers beside a worker that another launcher has started: in a process of their own, which
also ends the workers of this host when that launcher is gone.

    companion = Companion(environment)
    port = companion.start("10.0.0.1", servers=[0], common=variables, workers="2")

The near side, in the worker. The far side is companion_process: it ends with the worker, whatever ends that, once the
last session of the job has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..environment import Environment
from ..failure import LaunchError
from .launcher_process import LauncherProcess

_LAUNCHER = pathlib.Path(__file__).resolve().parent.parent / "launch.py"
_START_SECONDS = 60.0
_LONGEST = 1 << 16

# Kept as long as the process: their pipes tell the other side that it lives.
_KEPT: list[Companion] = []


class Companion:
    """A process beside this one."""

    def __init__(self, environment: Environment) -> None:
        """Starts it; LaunchError if that is not possible."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(_LAUNCHER), "--companion", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment.variables(),
                bufsize=0,
                start_new_session=True,  # A Ctrl-C is for the worker.
            )
        except OSError as error:
            raise LaunchError(f"cannot run {sys.executable}: {error.strerror}") from None
        _KEPT.append(self)

    def start(
        self,
        address: str | None,
        servers: Sequence[int],
        common: dict[str, str],
        workers: str,
        launcher: LauncherProcess | None = None,
    ) -> int:
        """Starts a coordinator at `address`, if one is given, and servers of these ranks; the coordinator's port.

        Args:
            address: of the coordinator
            servers: ranks of the servers
            common: variables of all processes of the job
            workers: on this host; 0 for servers beside a process that is no worker: they end with it at once
            launcher: what has started the worker beside us, and the others of this host, if it is known
        """
        request = {
            "address": address,
            "servers": list(servers),
            "variables": common,
            "workers": int(workers),
            "launcher": None if launcher is None else dataclasses.asdict(launcher),
        }
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # It has ended; its answer, or none, says so.
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        answer = self._answer()
        if "failed" in answer:
            raise LaunchError(f"the coordinator and servers beside this worker cannot start: {answer['failed']}")
        return int(answer["port"])

    def leave(self, seconds: float | None) -> None:
        """We need it no more: waits until it has ended, which it does with the job, or for so many seconds."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_SECONDS
        data = b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return {"failed": f"no answer within {_START_SECONDS:g} s"}
            piece = self._process.stdout.read(_LONGEST)
            if not piece:
                return {"failed": "their process has ended"}
            data += piece
        return json.loads(data)
