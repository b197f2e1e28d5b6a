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
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.guardian import Guardian
from launcher.job_folder import JobFolder
from launcher.output import OutputFiles, Printer
from launcher.supervisor import Supervisor

from . import raw
from .job import Layout, plan
from .lab import DEFAULT_CONGESTION, Lab, LabError, Traffic, why_not
from .rates import parse_rate, payload_seconds

_ENDING_SECONDS = 20
_MTU = 1500
_RAW_BYTES = 20_000_000
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
    run.add_argument("--mtu", type=_at_least(576), metavar="N", help=f"of all links (default {_MTU})")
    run.add_argument(
        "--loopback",
        action="store_true",
        help="no links: all hosts are on one loopback interface, as containers of one machine can be, without a bound",
    )
    run.add_argument(
        "--congestion",
        default=DEFAULT_CONGESTION,
        metavar="NAME",
        help="TCP's congestion control on all hosts, such as bbr (default: Linux's own default, cubic)",
    )
    run.add_argument(
        "--raw-bytes",
        type=_at_least(0),
        metavar="N",
        help=f"that a raw socket carries before the job, to be compared with (default {_RAW_BYTES}; 0: none)",
    )
    run.add_argument("--counters", action="store_true", help="say what each link has carried")
    run.add_argument("--output-dir", metavar="DIR", help="also keep the output of each role in a file there")
    run.add_argument("--kill-after", type=float, default=5.0, metavar="S", help="seconds from SIGTERM to SIGKILL")
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
    if arguments.mtu is None:
        arguments.mtu = _MTU
    if arguments.raw_bytes is None:
        arguments.raw_bytes = 0 if arguments.loopback else _RAW_BYTES
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
                except (LaunchError, LabError, OSError) as error:
                    printer.say(str(error))
                    return error.exit_code if isinstance(error, LaunchError) else 1
                finally:
                    folder.remove()

            return Guardian(body, math.ceil(arguments.kill_after) + _ENDING_SECONDS, printer).run()
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
    with Lab(arguments.mtu, arguments.congestion, loopback=arguments.loopback) as lab:
        layout.build(lab, arguments.rate, dict(arguments.slow))
        if arguments.raw_bytes > 0:
            _measure_raw(arguments, layout, lab, printer)
        specs = plan(layout, lab, arguments.command, Environment(os.environ), folder)
        before = lab.counters()
        code = Supervisor(printer, files, arguments.kill_after, lifeline, arguments.verbose).run(specs)
        if arguments.counters:
            _say_counters(before, lab.counters(), printer)
        return code


def _measure_raw(arguments: argparse.Namespace, layout: Layout, lab: Lab, printer: Printer) -> None:
    """Between the first worker and a host of the other kind, or another worker. The job learns it, too."""
    others = [name for name in reversed(layout.hosts()) if name not in dict(arguments.slow)]
    others = [name for name in others if name != "worker0"]
    if not others:
        return
    seconds = raw.measure(lab.hosts["worker0"], lab.hosts[others[0]], arguments.raw_bytes)
    os.environ["NETLAB_BYTES_PER_SECOND"] = str(arguments.raw_bytes / seconds)
    os.environ["NETLAB_OPTIMUM"] = str(layout.optimum())
    text = f"raw socket: {arguments.raw_bytes} bytes in {seconds:.3f} s"
    if arguments.rate is not None:
        least = payload_seconds(arguments.raw_bytes, arguments.rate)
        text += f" (at {arguments.rate / 1e6:g} Mbit/s at least {least:.3f} s)"
    printer.say(text)


def _say_counters(before: dict[str, Traffic], after: dict[str, Traffic], printer: Printer) -> None:
    for name, traffic in after.items():
        carried = traffic - before[name]
        printer.say(f"link of {name}: sent {carried.sent} bytes, received {carried.received} bytes")


def _at_least(minimum: int) -> type:
    def parse(text: str) -> int:
        number = int(text, 10)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number}: must be at least {minimum}")
        return number

    parse.__name__ = "whole number"
    return parse  # type: ignore[return-value]


def _rate(text: str) -> int:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _slow(text: str) -> tuple[str, int]:
    name, _, rate = text.partition("=")
    return name, _rate(rate)


if __name__ == "__main__":
    sys.exit(main())
