"""bps_perf as its user calls it: it starts itself as the workers of a job, and passes on what the first one says.

    sys.exit(launch(program, arguments, words))

Results come on the standard output as they are, without bpslaunch's names in front; all else goes to the standard
error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

_FIRST = "[worker 0] "


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment of the job: what is to be measured is said, not guessed."""
    variables = dict(os.environ)
    if arguments.scheduler is not None:
        variables["BYTEPS_SCHEDULER"] = arguments.scheduler
    if arguments.transport is not None:
        variables["BYTEPS_TRANSPORT"] = arguments.transport
        # All processes are on this host: shared memory would carry what is to go over the network.
        if arguments.transport not in ("auto", "local"):
            variables.setdefault("BYTEPS_SHM", "0")
    if arguments.transport == "local":
        del variables["BYTEPS_TRANSPORT"]
    return variables


def launch(program: Path, arguments: argparse.Namespace, words: list[str]) -> int:
    """The exit code of the job."""
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
    with subprocess.Popen(command, env=_variables(arguments), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        try:
            for line in job.stdout:
                ours = line.startswith(_FIRST)
                print(line.removeprefix(_FIRST), end="", file=sys.stdout if ours else sys.stderr, flush=True)
        except KeyboardInterrupt:
            pass  # the launcher has got it, too, and ends the job
        except BrokenPipeError:
            job.terminate()
        return job.wait()
