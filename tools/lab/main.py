"""The command line of netlab.

    tools/netlab run --hosts 8 --rate 200mbit -- bps_perf --sizes 20M
    tools/netlab run --hosts 8 --colocate --servers 4 --rate 200mbit -- python train.py

`run` starts a whole BytePS job (a coordinator, servers, and the command as each worker), every role on a host of its
own with a link of that rate, all on this machine, and ends with the command's exit code. Worker hosts are worker0,
worker1, ..., hosts with a server alone server0, ... . First it measures how long a plain socket takes over the same
links: that is what times are to be judged by. The job has a secret of its own. When the command ends, or is
interrupted, or netlab is killed, nothing of it is left.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher import process_tree
from launcher.arguments import parse_seconds
from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.guardian import Guardian
from launcher.job_folder import JobFolder
from launcher.output import OutputFiles, Printer
from launcher.supervisor import Supervisor

from . import raw
from .interrupts import Interrupted, interruptible
from .job import Layout, plan
from .lab import Lab, LabError, Traffic, why_not
from .rates import parse_rate, payload_seconds

_ENDING_SECONDS = 20
_MTU = 1500
_LEAST_MTU = 576
_LARGEST_MTU = 65535  # of a veth pair
_MOST = 1000  # hosts, or workers of one, or servers: more namespaces than that are no lab
_RAW_BYTES = 20_000_000
_LEAST_RAW_BYTES = 200_000  # fewer are but the head start that a full token bucket gives
_LONGEST_RAW_SECONDS = 3600
_ASSUMED_RATE = 10**9  # of links without a bound
_SWEEP_SECONDS = 5.0
_TOOLS = Path(__file__).resolve().parents[1]


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Wrong usage ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="run a job in a lab", allow_abbrev=False)
    run.add_argument("--hosts", type=_at_least(1), default=2, metavar="N", help="worker hosts (default 2)")
    run.add_argument("--local-workers", type=_at_least(1), default=1, metavar="N", help="workers on each (default 1)")
    run.add_argument(
        "--servers",
        type=_at_least(0),
        metavar="N",
        help="hosts with a server alone (default: as many as worker hosts; none with --colocate)",
    )
    run.add_argument("--colocate", action="store_true", help="a server on each worker host, too")
    run.add_argument("--rate", type=_rate, metavar="R", help="of each link, such as 200mbit (default: no bound)")
    run.add_argument(
        "--slow", type=_slow, action="append", default=[], metavar="HOST=R", help="this host's link is slower"
    )
    run.add_argument("--mtu", type=_mtu, metavar="N", help=f"of all links (default {_MTU})")
    run.add_argument(
        "--loopback",
        action="store_true",
        help="no links: all hosts are on one loopback interface, as containers of one machine can be, without a bound",
    )
    run.add_argument(
        "--congestion",
        metavar="NAME",
        help="TCP's congestion control on all hosts, such as bbr (default: Linux's own default, cubic; with --loopback "
        "this machine's)",
    )
    run.add_argument(
        "--sysctl",
        type=_sysctl,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the network of all hosts, such as net.ipv4.tcp_slow_start_after_idle=0",
    )
    run.add_argument(
        "--raw-bytes",
        type=_raw_bytes,
        metavar="N",
        help="that a raw socket carries before the job, to be compared with "
        f"(default {_RAW_BYTES}, or what takes a second; 0: none)",
    )
    run.add_argument("--counters", action="store_true", help="say what each link has carried")
    run.add_argument("--output-dir", metavar="DIR", help="also keep the output of each role in a file there")
    run.add_argument(
        "--kill-after", type=parse_seconds, default=5.0, metavar="S", help="seconds from SIGTERM to SIGKILL"
    )
    run.add_argument("--verbose", action="store_true", help="say what is started and how it ends")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- command")
    arguments = parser.parse_args(words)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    if not arguments.command:
        run.error("no command to run")
    of_links = (arguments.slow, arguments.counters, arguments.mtu, arguments.raw_bytes)
    if arguments.loopback and (arguments.rate is not None or any(of_links)):
        run.error("--loopback has no links: no --rate, --slow, --counters, --mtu or --raw-bytes")
    names = [name for name, _ in arguments.slow]
    for name, rate in arguments.slow:
        if names.count(name) > 1:
            run.error(f"--slow {name}: named twice")
        if arguments.rate is not None and rate >= arguments.rate:
            run.error(
                f"--slow {name}: {rate / 1e6:g} Mbit/s is not slower than --rate, {arguments.rate / 1e6:g} Mbit/s"
            )
    if arguments.mtu is None:
        arguments.mtu = _MTU
    if arguments.loopback:
        arguments.raw_bytes = 0
    if arguments.servers is None:
        arguments.servers = 0 if arguments.colocate else arguments.hosts
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Runs netlab and returns its exit code."""
    arguments = parse_arguments(words)
    printer = Printer("netlab")
    # bps_perf and its like, and the Python they need.
    tools = [str(_TOOLS), str(_TOOLS.parent / ".venv" / "bin")]
    os.environ["PATH"] = ":".join([*tools, os.environ.get("PATH", "/usr/bin:/bin")])
    _prefer_installed_server()
    layout = Layout(arguments.hosts, arguments.servers, arguments.colocate, arguments.local_workers)
    obstacle = why_not()
    if obstacle is not None:
        printer.say(obstacle)
        return 1
    try:
        layout.check()
        with JobFolder() as folder:

            def body(lifeline: int) -> int:
                try:
                    return _run(arguments, layout, folder, printer, lifeline)
                except Interrupted as interrupted:
                    # Also what was just being started, and is not known yet.
                    process_tree.end_descendants(time.monotonic() + _SWEEP_SECONDS)
                    printer.say(f"{interrupted}: ending the job")
                    return 128 + interrupted.number
                except (LaunchError, LabError, OSError) as error:
                    printer.say(str(error))
                    return error.exit_code if isinstance(error, LaunchError) else 1
                finally:
                    folder.remove()

            return Guardian(body, lambda: math.ceil(arguments.kill_after) + _ENDING_SECONDS, printer).run()
    except LaunchError as error:
        printer.say(str(error))
        return error.exit_code


def _prefer_installed_server() -> None:
    """The server of the package that the workers import has its plugins beside it; that of a checkout may not."""
    package = importlib.util.find_spec("byteps")
    if package is not None and package.origin is not None:
        binary = Path(package.origin).parent / "bin" / "byteps_server"
        if binary.exists():
            os.environ.setdefault("BYTEPS_SERVER_BINARY", str(binary))


def _run(arguments: argparse.Namespace, layout: Layout, folder: JobFolder, printer: Printer, lifeline: int) -> int:
    files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
    with Lab(arguments.mtu, arguments.congestion, loopback=arguments.loopback, sysctls=dict(arguments.sysctl)) as lab:
        with interruptible(lifeline):
            layout.build(lab, arguments.rate, dict(arguments.slow))
            if arguments.raw_bytes != 0:
                _measure_raw(arguments, layout, lab, printer)
            specs = plan(layout, lab, arguments.command, Environment(os.environ), folder)
            before = lab.counters()
        code = Supervisor(printer, files, arguments.kill_after, lifeline, arguments.verbose).run(specs)
        if arguments.counters:
            _say_counters(before, lab.counters(), printer)
        return code


def _measure_raw(arguments: argparse.Namespace, layout: Layout, lab: Lab, printer: Printer) -> None:
    """Between the first worker and a host of the other kind, or another worker; of those that are not slowed, if there
    are two. The job learns it, too."""
    slow = dict(arguments.slow)
    names = [name for name in layout.hosts() if name not in slow]
    what = "raw socket"
    if len(names) < 2:
        names = layout.hosts()
        what += f" from {names[0]} to {names[-1]}, a slowed link"
    if len(names) < 2:
        return
    source, sink = names[0], names[-1]
    rates = [slow.get(name, arguments.rate) for name in (source, sink)]
    rate = min((each for each in rates if each is not None), default=None)
    per_byte = payload_seconds(1, rate or _ASSUMED_RATE)
    size = arguments.raw_bytes
    if size is None:
        size = _RAW_BYTES if rate is None else min(_RAW_BYTES, max(_LEAST_RAW_BYTES, round(1 / per_byte)))
    most = int(_LONGEST_RAW_SECONDS / per_byte / raw.ROUNDS)
    if size > most:
        raise LaunchError(f"--raw-bytes {size}: at most {most}, which take an hour in {raw.ROUNDS} rounds")
    try:
        seconds = raw.measure(lab.hosts[source], lab.hosts[sink], size, limit=_raw_limit(size * raw.ROUNDS * per_byte))
    except (LabError, OSError) as error:
        raise LabError(f"the raw socket from {source} to {sink} cannot be measured: {error}") from error
    os.environ["NETLAB_BYTES_PER_SECOND"] = str(size / seconds)
    os.environ["NETLAB_OPTIMUM"] = str(layout.optimum())
    text = f"{what}: {size} bytes in {seconds:.3f} s"
    if rate is not None:
        text += f" (at {rate / 1e6:g} Mbit/s at least {size * per_byte:.3f} s)"
    printer.say(text)


def _raw_limit(seconds: float) -> float:
    """Of a measurement that takes so long on an idle machine."""
    return 20 + 4 * seconds


def _say_counters(before: dict[str, Traffic], after: dict[str, Traffic], printer: Printer) -> None:
    for name, traffic in after.items():
        carried = traffic - before[name]
        printer.say(f"link of {name}: sent {carried.sent} bytes, received {carried.received} bytes")


def _at_least(minimum: int) -> type:
    def parse(text: str) -> int:
        number = int(text, 10)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number}: must be at least {minimum}")
        if number > _MOST:
            raise argparse.ArgumentTypeError(f"{number}: must be at most {_MOST}")
        return number

    parse.__name__ = "whole number"
    return parse  # type: ignore[return-value]


def _mtu(text: str) -> int:
    mtu = int(text, 10)
    if not _LEAST_MTU <= mtu <= _LARGEST_MTU:
        raise argparse.ArgumentTypeError(f"{mtu}: must be {_LEAST_MTU} to {_LARGEST_MTU}")
    return mtu


def _raw_bytes(text: str) -> int:
    size = int(text, 10)
    if size != 0 and size < _LEAST_RAW_BYTES:
        raise argparse.ArgumentTypeError(
            f"{size}: must be 0 or at least {_LEAST_RAW_BYTES}; fewer say nothing of a link, which lets the first ones "
            "through at once"
        )
    return size


def _rate(text: str) -> int:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _slow(text: str) -> tuple[str, int]:
    name, _, rate = text.partition("=")
    return name, _rate(rate)


def _sysctl(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(net(?:\.\w+)+)=(.+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no sysctl of a network, such as net.ipv4.tcp_ecn=1")
    return found[1], found[2]


if __name__ == "__main__":
    sys.exit(main())
