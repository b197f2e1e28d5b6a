"""The command line of bpslaunch."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence

from .installation import installed_release

_DESCRIPTION = """\
Starts the processes of a BytePS job, prints their output with the name of each in front, and ends all of them when
one fails.

A whole job on this host (coordinator, servers and workers, with the DMLC_* and BYTEPS_* variables set):

    bpslaunch --workers 2 -- python train.py --epochs 3
    BYTEPS_FORCE_DISTRIBUTED=1 bpslaunch --workers 2 --servers 1 -- python train.py --epochs 3

One role at a time, on one or several hosts, the way of BytePS:

    export DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000
    DMLC_ROLE=scheduler bpslaunch
    DMLC_ROLE=server bpslaunch
    DMLC_ROLE=worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_SIZE=2 bpslaunch python train.py
    DMLC_ROLE=worker DMLC_WORKER_ID=1 BYTEPS_LOCAL_SIZE=2 bpslaunch python train.py
"""

_EPILOG = """\
variables that the launcher reads:
  DMLC_ROLE                    one role by hand: scheduler, server or worker (then without --workers and --servers)
  BYTEPS_LOCAL_SIZE            workers on this host; else NVIDIA_VISIBLE_DEVICES is counted; else 1 (one role by hand)
  BYTEPS_FORCE_DISTRIBUTED=1   use servers even on one host, whose workers could reduce among themselves
  BYTEPS_JOB_TOKEN[_FILE]      the job's secret; a whole job makes up its own
  BYTEPS_ENABLE_GDB=1          run every process under gdb; prints a backtrace after a crash
  BYTEPS_NUMA_ON=0             do not pin workers to cores (default: pinned on hosts with several NUMA nodes);
                               more: BYTEPS_VISIBLE_CPU_CORES, BYTEPS_NUMA_DEFAULT_QUOTA, BYTEPS_NUMA_ROOT_QUOTA,
                               BYTEPS_CPU_BLACKLIST, BYTEPS_MULTITHREADED_CPU
  BYTEPS_TRACE_ON=1            make the folders for timelines, below BYTEPS_TRACE_DIR (default ./trace)
  BYTEPS_SERVER_BINARY         another byteps_server, for development

exit code:
  0 when every process ended as it should; else that of the first process that failed (128+n: killed by signal n);
  128+n when the launcher itself got signal n; 2 for wrong arguments or variables; 126, 127: a program cannot be run.

More in docs/running.md.
"""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What was asked for; None where nothing was said."""

    workers: int | None
    servers: int | None
    port: int | None
    colocate: bool
    output_dir: str | None
    kill_after: float
    check: bool
    verbose: bool
    command: list[str]

    @property
    def whole_job(self) -> bool:
        """True if an option says that all processes shall run on this host."""
        return not (self.workers is None and self.servers is None and self.port is None)


def parse_arguments(words: Sequence[str] | None = None) -> Arguments:
    """Parses `words`, or the process's own. Wrong usage ends the process with code 2, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="bpslaunch",
        usage="bpslaunch [--workers N] [--servers N] [options] [--] command [argument ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=_at_least(1), metavar="N", help="workers on this host (default 1)")
    parser.add_argument(
        "--servers",
        type=_at_least(0),
        metavar="N",
        help="servers on this host (default: none). The workers of one host reduce among themselves, also beside "
        "servers, unless they cannot or BYTEPS_FORCE_DISTRIBUTED=1 sends their tensors through the servers",
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="port of the coordinator on loopback (default: a free one)"
    )
    parser.add_argument(
        "--colocate",
        action="store_true",
        help="role worker: a server on this host, too, beside those on hosts of their own",
    )
    parser.add_argument(
        "--output-dir", metavar="DIR", help="also write DIR/<role><rank>.stdout and .stderr, byte for byte"
    )
    parser.add_argument(
        "--kill-after",
        type=parse_seconds,
        default=5.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL when the job ends early (default 5)",
    )
    parser.add_argument(
        "--check", action="store_true", help="start nothing: say what would go wrong, one line per check"
    )
    parser.add_argument("--verbose", action="store_true", help="say what is started and how it ends")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the release and exit")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help=argparse.SUPPRESS)
    values = parser.parse_args(words)
    command = values.command
    if command and command[0] == "--":
        command = command[1:]
    return Arguments(
        workers=values.workers,
        servers=values.servers,
        port=values.port,
        colocate=values.colocate,
        output_dir=values.output_dir,
        kill_after=values.kill_after,
        check=values.check,
        verbose=values.verbose,
        command=command,
    )


class _Version(argparse.Action):
    """Looks the release up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"bpslaunch {installed_release()}")
        parser.exit()


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text, 10)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number}: must be at least {minimum}")
        return number

    parse.__name__ = "whole number"  # For argparse: "invalid whole number value".
    return parse


def _port(text: str) -> int:
    port = int(text, 10)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port}: must be 0 to 65535")
    return port


def parse_seconds(text: str) -> float:
    """A number of seconds on a command line, 0 to 3600."""
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be 0 to 3600")
    return seconds


_port.__name__ = "port"
parse_seconds.__name__ = "number of seconds"
