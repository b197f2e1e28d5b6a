"""The command line of bpslaunch."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

from .installation import installed_release

_DESCRIPTION = """\
Starts the processes of a BytePS job, prints their output with the name of each in front, and ends all of them when
one fails.

A whole job on this host (coordinator, servers and workers, with the DMLC_* and BYTEPS_* variables set):

    bpslaunch --workers 2 -- python train.py --epochs 3
    BYTEPS_FORCE_DISTRIBUTED=1 bpslaunch --workers 2 --servers 1 -- python train.py --epochs 3

A whole job over several hosts that ssh reaches without a password:

    bpslaunch --hosts a:4,b:4 --server-hosts c,d -- python train.py

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
  BYTEPS_SET_CUDA_VISIBLE_DEVICES=1
                               each worker sees one GPU: that of its local rank in CUDA_VISIBLE_DEVICES or
                               NVIDIA_VISIBLE_DEVICES
  BYTEPS_TRACE_ON=1            workers write timelines below BYTEPS_TRACE_DIR (default ./trace)
  BYTEPS_SERVER_BINARY         another byteps_server, for development

exit code:
  0 when every process ended as it should; else that of the first process that failed (128+n: killed by signal n);
  128+n when the launcher itself got signal n; 2 for wrong arguments or variables; 126, 127: a program cannot be run.

More in docs/running.md.
"""


@dataclasses.dataclass(frozen=True)
class RemoteArguments:
    """What was asked for about other hosts; None where nothing was said."""

    hosts: str | None = None
    hostfile: str | None = None
    server_hosts: str | None = None
    server_hostfile: str | None = None
    worker_hostfile_of_byteps: str | None = None
    server_hostfile_of_byteps: str | None = None
    coordinator: str | None = None
    scheduler_ip: str | None = None
    scheduler_ssh_port: int | None = None
    interface: str | None = None
    user: str | None = None
    ssh_port: int | None = None
    ssh_identity: str | None = None
    ssh_args: str = ""
    bpslaunch: str | None = None
    directory: str | None = None

    @property
    def given(self) -> bool:
        """True if the job has hosts of its own."""
        return any((self.hosts, self.hostfile, self.worker_hostfile_of_byteps))


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
    env: tuple[str, ...] = ()
    timestamps: bool = False
    host_names: bool = False
    dry_run: bool = False
    measure: bool = False
    agent: bool = False
    companion: int | None = None
    server_tasks: int | None = None
    given: frozenset[str] = frozenset()  # the options that the user has written, by their first long names
    remote: RemoteArguments = dataclasses.field(default_factory=lambda: RemoteArguments())

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
        help="a server on each worker host, too, beside those on hosts of their own (role worker: on this host)",
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
        "--check",
        action="store_true",
        help="start nothing: say what would go wrong, one line per check, over several hosts one table; "
        "--check=network measures between the hosts, too",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="start nothing: print each command as it would run, and on which cores"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for every process; without a value as it is here, for the other hosts",
    )
    parser.add_argument("--timestamps", action="store_true", help="the time in front of each line of output")
    parser.add_argument(
        "--host-names", action="store_true", help="over several hosts: the host's name in front of each line, too"
    )
    _add_remote(parser)
    parser.add_argument("--verbose", action="store_true", help="say what is started and how it ends")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the release and exit")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help=argparse.SUPPRESS)
    # As an argument of --check, "network" could also be the first word of a command; no word of one is as this here.
    parser.add_argument("--check\0network", action="store_true", dest="check_network", help=argparse.SUPPRESS)
    given = sys.argv[1:] if words is None else list(words)
    words = [word.replace("--check=network", "--check\0network") for word in given]
    values, options = _parse(parser, words)
    command = [word.replace("--check\0network", "--check=network") for word in values.command]
    if command and command[0] == "--":
        command = command[1:]
    return Arguments(
        workers=values.workers,
        servers=values.servers,
        port=values.port if values.port is not None else values.scheduler_port,
        colocate=values.colocate,
        output_dir=values.output_dir,
        kill_after=values.kill_after,
        check=values.check or values.check_network,
        measure=values.check_network,
        verbose=values.verbose,
        command=command,
        env=tuple(values.env),
        timestamps=values.timestamps,
        host_names=values.host_names,
        dry_run=values.dry_run,
        agent=values.agent,
        companion=values.companion,
        server_tasks=values.server_tasks,
        given=options,
        remote=_remote(parser, values),
    )


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, frozenset[str]]:
    """The values, and the options that were given, also those with the value that they have by default."""
    unset = object()
    # Of what stands there already argparse sets no default. (What appends looks at the old value.)
    actions = [
        action for action in parser._actions if action.option_strings and action.default is not argparse.SUPPRESS
    ]
    single = [action for action in actions if not isinstance(action.default, list)]
    values = parser.parse_args(words, argparse.Namespace(**{action.dest: unset for action in single}))
    options = set()
    for action in single:
        if getattr(values, action.dest) is unset:
            setattr(values, action.dest, action.default)
        else:
            named = next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])
            options.add(named.replace("\0", "="))
    return values, frozenset(options)


def _add_remote(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several hosts, by ssh")
    group.add_argument("--hosts", "-H", metavar="A:4,B:4", help="hosts of workers, and how many each has (1)")
    group.add_argument("--hostfile", metavar="FILE", help="the same, a host a line: `a slots=4`")
    group.add_argument("--server-hosts", metavar="C,D", help="hosts of servers (default: one server on each host)")
    group.add_argument("--server-hostfile", metavar="FILE", help="the same, a host a line")
    group.add_argument(
        "--server-tasks",
        type=_at_least(1),
        metavar="N",
        help="in a Slurm allocation: its last N tasks are servers, and not workers",
    )
    group.add_argument("--coordinator", metavar="HOST", help="where the coordinator runs (default: the first host)")
    group.add_argument("--ssh-port", type=_port, metavar="N", help="port of the ssh daemons")
    group.add_argument("--ssh-user", "--username", metavar="NAME", help="whom to log in as")
    group.add_argument("--ssh-identity", "-i", "--identity_file", metavar="FILE", help="the key to log in with")
    group.add_argument("--ssh-args", default="", metavar="ARGS", help="more arguments of ssh, as a shell reads them")
    group.add_argument("--directory", metavar="DIR", help="where the processes run (default: this folder)")
    group.add_argument(
        "--remote-bpslaunch", metavar="COMMAND", help="bpslaunch on the other hosts (default: installed as it is here)"
    )
    group.add_argument("-WH", "--worker-hostfile", metavar="FILE", help="as in BytePS: `host:sshport` a line")
    group.add_argument("-SH", "--server-hostfile-of-byteps", metavar="FILE", help="as in BytePS: `host:sshport` a line")
    group.add_argument("--scheduler-ip", metavar="HOST", help="as in BytePS: host (and address) of the coordinator")
    group.add_argument("--scheduler-port", type=_port, metavar="N", help="as in BytePS: its port, as --port")
    group.add_argument("--scheduler-ssh-port", type=_port, metavar="N", help="as in BytePS")
    group.add_argument("--interface", metavar="NAME", help="as in BytePS: the network interface (DMLC_INTERFACE)")
    group.add_argument("--agent", action="store_true", help=argparse.SUPPRESS)  # what runs on the other hosts
    group.add_argument("--companion", type=int, help=argparse.SUPPRESS)  # what runs beside a worker


def _remote(parser: argparse.ArgumentParser, values: argparse.Namespace) -> RemoteArguments:
    ways = {
        "--hosts": values.hosts,
        "--hostfile": values.hostfile,
        "--worker-hostfile": values.worker_hostfile,
    }
    given = [option for option, value in ways.items() if value is not None]
    if len(given) > 1:
        parser.error(f"{' and '.join(given)}: name the hosts of the workers in one way")
    named = {
        "--server-hosts": values.server_hosts,
        "--server-hostfile": values.server_hostfile,
        "-SH": values.server_hostfile_of_byteps,
        "--coordinator": values.coordinator,
        "--scheduler-ip": values.scheduler_ip,
    }
    without = [option for option, value in named.items() if value is not None]
    if without and not given:
        parser.error(f"{without[0]} without hosts for workers: --hosts, --hostfile or --worker-hostfile")
    if sum(option in without for option in ("--server-hosts", "--server-hostfile", "-SH")) > 1:
        parser.error("name the hosts of the servers in one way")
    if values.port is not None and values.scheduler_port is not None:
        parser.error("--port and --scheduler-port are the same: name one")
    if "--coordinator" in without and "--scheduler-ip" in without:
        parser.error("--coordinator and --scheduler-ip: name the coordinator's host in one way")
    return RemoteArguments(
        hosts=values.hosts,
        hostfile=values.hostfile,
        server_hosts=values.server_hosts,
        server_hostfile=values.server_hostfile,
        worker_hostfile_of_byteps=values.worker_hostfile,
        server_hostfile_of_byteps=values.server_hostfile_of_byteps,
        coordinator=values.coordinator,
        scheduler_ip=values.scheduler_ip,
        scheduler_ssh_port=values.scheduler_ssh_port,
        interface=values.interface,
        user=values.ssh_user,
        ssh_port=values.ssh_port,
        ssh_identity=values.ssh_identity,
        ssh_args=values.ssh_args,
        bpslaunch=values.remote_bpslaunch,
        directory=values.directory,
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
