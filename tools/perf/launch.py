"""bps_perf as its user calls it: it starts itself as the workers of a job, and passes on what the first one says.

    sys.exit(launch(program, arguments, words))

Results come on the standard output as they are, without bpslaunch's names in front; all else goes to the standard
error.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_FIRST = "[worker 0] "
_PR_SET_PDEATHSIG = 1


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment of the job: what is to be measured is said, not guessed."""
    variables = dict(os.environ)
    if arguments.scheduler is not None:
        variables["BYTEPS_SCHEDULER"] = arguments.scheduler
    if arguments.transport is not None:
        variables["BYTEPS_TRANSPORT"] = arguments.transport
        # All processes are on this host: shared memory would carry what is to go over the network, or the workers would
        # do without servers.
        if arguments.transport not in ("auto", "local"):
            variables.setdefault("BYTEPS_SHM", "0")
            variables.setdefault("BYTEPS_FORCE_DISTRIBUTED", "1")
    if arguments.transport == "local":
        for name in ("BYTEPS_TRANSPORT", "BYTEPS_SHM", "BYTEPS_LOCAL_REDUCE", "BYTEPS_FORCE_DISTRIBUTED"):
            variables.pop(name, None)
    return variables


def _apart() -> None:
    """In the launcher before it is one: the terminal's Ctrl-C reaches it through us, once; and it ends the job in order
    if we are killed."""
    os.setpgrp()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def launch(program: Path, arguments: argparse.Namespace, words: list[str]) -> int:
    """The exit code of the job; 128 + SIGPIPE if no process reads the output, 1 if it cannot be written."""
    beside = Path(sys.executable).parent / "bpslaunch"
    launcher = str(beside) if beside.exists() else shutil.which("bpslaunch")
    if launcher is None:
        print(f"bps_perf: bpslaunch is neither beside {sys.executable} nor in PATH: install byteps", file=sys.stderr)
        return 127
    command = [
        launcher,
        *("--workers", str(arguments.workers), "--servers", str(arguments.servers)),
        *("--", sys.executable, str(program), "--worker", *words),
    ]
    with subprocess.Popen(
        command, env=_variables(arguments), stdout=subprocess.PIPE, text=True, preexec_fn=_apart
    ) as job:
        assert job.stdout is not None
        # The launcher ends the job in order, and says so by its exit code.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda caught, _: job.send_signal(caught))
        try:
            for line in job.stdout:
                ours = line.startswith(_FIRST)
                print(line.removeprefix(_FIRST), end="", file=sys.stdout if ours else sys.stderr, flush=True)
        except OSError as error:  # of our own output
            job.terminate()
            job.stdout.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python still has to flush
            job.wait()
            if isinstance(error, BrokenPipeError):
                return 128 + signal.SIGPIPE
            print(f"bps_perf: the output cannot be written: {error.strerror}", file=sys.stderr)
            return 1
        return job.wait()
