"""The command line of bps_perf.

arguments = parse(words, inside=False)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from .model import known_models, read_model
from .size import parse_sizes

_SIZES = "4,1K,16K,64K,256K,1M,4M,16M,100M"
# Bytes of an element.
DTYPES = {
    **{"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2},
    **{"int8": 1, "uint8": 1, "int32": 4, "int64": 8},
}
OPS = ["sum", "average", "min", "max", "product"]
# Among workers, and not push_pull.
COLLECTIVES = ["allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter"]
PEERS = ["gloo", "raw"]
# In place, an operation of this kind can be repeated without numbers that grow.
_STABLE = ["average", "min", "max"]

_DESCRIPTION = """\
How fast push_pull is on this machine, or in the job that this is a worker of: what nccl-tests is to NCCL.

    bps_perf                                                 2 workers, 1 server, 4 B to 100 MB
    bps_perf --servers 0 --against gloo,raw                  the workers of one host among themselves
    bps_perf --transport tcp --sizes 4,64K,100M --json
    bps_perf --mode bandwidth --tensors 8 --sizes 4M --plot rate.png
    bps_perf --sizes 4K --tensors 500 --against gloo         many at once
    bps_perf --model vgg16 --schedulers fifo,credit          training steps
    bps_perf --op allgather --workers 4 --against gloo       a collective among workers

It starts a job on this host (a coordinator, servers, workers) and measures each size over several rounds. Inside a
job, such as one that bpslaunch or netlab runs on several hosts, it is a worker of that job:

    tools/netlab run --hosts 4 --rate 200mbit -- bps_perf --sizes 20M --against gloo
"""

_EPILOG = """\
modes:
  latency    for each round all ranks are released from a barrier together; a round is: every tensor is submitted,
             then every result waited for. time: the median of rank 0's times; of allgather and its kin the median of
             each round's longest of all ranks. Every output is checked.
  bandwidth  every tensor goes again as soon as it is back, so that --tensors of them are under way all the time.
             time: that of so many rounds over their number (of all tensors once); the percentiles are those of single
             operations. The last outputs are checked.

columns (--json and --csv have more: min, mean, max, and what was measured):
  time us      microseconds of a round; p50, p90, p99: percentiles by nearest rank
  algbw GB/s   bytes of all tensors / time
  cpu s/GB     CPU seconds per GB of tensor, of push_pull alone: workers + servers + coordinator (on this host)
  PEER us      the same time of the peer, in turn with push_pull in the same run; ratio: below 1 is faster than the peer

peers (--against):
  gloo       torch.distributed's all-reduce, or the same collective, between the same processes
  raw        the medium itself. With servers over tcp: every worker sends the bytes through a plain socket to a process
             beside the next worker and gets them back. With servers over verbs or efa: there and back by fi_pingpong
             (package libfabric-bin). Through shared memory, or without servers: every worker by itself adds up its
             share of the elements by c = a + b and writes it as often as there are outputs

transports (--transport): a plugin's name (tcp, verbs, efa, shm) measures that one alone, all processes of this host
  included (BYTEPS_SHM=0, unless the environment says otherwise); auto is what a job takes by itself; local are the
  workers of this host among themselves, without servers

models (--model): layers are slept through for as long as the profile in tools/models says, gradients travel for real,
  each with the priority of its layer in the forward pass, and a layer waits for its own. It prints the time of a step
  for each scheduler, on links of a known rate next to the least possible, and with --against gloo for buckets
  as DistributedDataParallel makes them.

exit status: 0; 1 if a result was wrong or the job failed; 2 if the call is wrong; 141 if no program reads the output.
More in docs/tools.md.
"""


def _list_of(choices: Sequence[str]) -> type:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return list(dict.fromkeys(names))

    return parse  # type: ignore[return-value]


def _names(text: str) -> list[str]:
    names = text.split(",")
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names such as fifo,credit")
    return list(dict.fromkeys(names))


def _plugin(text: str) -> str:
    """In lower case, as plugins are found whatever the case of their names; a path as it is."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a plugin")
    return text if "/" in text else text.lower()


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def _at_least(minimum: int) -> type:
    def parse(text: str) -> int:
        number = int(text, 10)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number}: must be at least {minimum}")
        return number

    parse.__name__ = "whole number"
    return parse  # type: ignore[return-value]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bps_perf",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    job = parser.add_argument_group("the job (only where this starts it)")
    job.add_argument("--workers", type=_at_least(1), metavar="N", help="worker processes (2)")
    job.add_argument(
        "--servers",
        type=_at_least(0),
        metavar="N",
        help="server processes (1; with local 0); BYTEPS_FORCE_DISTRIBUTED=1 makes them sum",
    )
    job.add_argument("--transport", type=_plugin, metavar="NAME", help="what carries the tensors; see below (auto)")
    job.add_argument("--scheduler", type=_plugin, metavar="NAME", help="the scheduler plugin (as BYTEPS_SCHEDULER)")
    what = parser.add_argument_group("what is measured")
    what.add_argument("--mode", choices=["latency", "bandwidth"], default="latency", help="see below (latency)")
    what.add_argument("--sizes", type=parse_sizes, metavar="LIST", help=f"bytes of a tensor, whole elements ({_SIZES})")
    what.add_argument(
        "--dtype", choices=DTYPES, default="float32", metavar="TYPE", help=f"{', '.join(DTYPES)} (float32)"
    )
    what.add_argument(
        "--op",
        choices=OPS + COLLECTIVES,
        metavar="OP",
        help=f"of push_pull: {', '.join(OPS)} (sum; average in mode bandwidth); or a collective among workers: "
        "allgather, reducescatter, alltoall, broadcast, reduce, gather, scatter, of the size of its larger side",
    )
    what.add_argument("--out-of-place", action="store_true", help="each result in a new tensor")
    what.add_argument(
        "--reuse-outputs",
        action="store_true",
        help="with --out-of-place: in the same ones, round after round, whose pages are there",
    )
    what.add_argument(
        "--buffers",
        action="store_true",
        help="tensors in memory of BytePS's own (bps.empty); with --out-of-place the results, too, in the same ones",
    )
    what.add_argument(
        "--tensors", type=_at_least(1), metavar="N", help="tensors of the size at once (1; 4 in mode bandwidth)"
    )
    what.add_argument("--rounds", type=_at_least(1), metavar="N", help="rounds per size (by size, 5 to 200)")
    what.add_argument("--against", type=_list_of(PEERS), default=[], metavar="LIST", help="gloo, raw: see below")
    how = parser.add_argument_group("how it is shown")
    form = how.add_mutually_exclusive_group()
    form.add_argument(
        "--json", dest="form", action="store_const", const="json", default="table", help="an object per size"
    )
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="a line per size, with a header")
    how.add_argument("--plot", type=Path, metavar="FILE", help="also draw it (.png, .svg, .pdf); needs matplotlib")
    steps = parser.add_argument_group("training steps")
    steps.add_argument(
        "--model", metavar="NAME", help=f"replay those of {', '.join(known_models())} or of a file (with a slash)"
    )
    steps.add_argument(
        "--schedulers",
        type=_names,
        metavar="LIST",
        help="these, one after the other (fifo,priority,credit)",
    )
    steps.add_argument("--shrink", type=_at_least(1), metavar="N", help="tensors N times smaller")
    steps.add_argument("--compute", type=_seconds, metavar="S", help="seconds of computation per step (the profile's)")
    steps.add_argument("--steps", type=_at_least(1), metavar="N", help="steps measured (5)")
    steps.add_argument(
        "--warm-up",
        type=_at_least(0),
        metavar="N",
        help="steps before them, in which all is new and rates are learned (2)",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def parse(words: Sequence[str], inside: bool) -> argparse.Namespace:
    """`inside`: this is a worker of a job that another process has started. Ends the program if the call is wrong."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if inside and not arguments.worker:
        for name in ("workers", "servers", "transport"):
            if getattr(arguments, name) is not None:
                parser.error(f"--{name} is for a job that bps_perf starts; this is a worker of one that is there")
    bandwidth = arguments.mode == "bandwidth"
    if arguments.model is not None:
        # What a replayed step has of its own.
        for name, given in (
            ("--csv", arguments.form == "csv"),
            ("--scheduler", arguments.scheduler is not None),
            ("--mode", bandwidth),
            ("--sizes", arguments.sizes is not None),
            ("--dtype", arguments.dtype != "float32"),
            ("--op", arguments.op is not None),
            ("--out-of-place", arguments.out_of_place),
            ("--reuse-outputs", arguments.reuse_outputs),
            ("--buffers", arguments.buffers),
            ("--tensors", arguments.tensors is not None),
            ("--rounds", arguments.rounds is not None),
        ):
            if given:
                parser.error(f"{name} does not go with --model")
        if "raw" in arguments.against:
            parser.error("--against raw does not go with --model")
        try:
            read_model(arguments.model)
        except (ValueError, OSError) as error:
            parser.error(str(error))
    else:
        for name in ("schedulers", "shrink", "compute", "steps", "warm_up"):
            if getattr(arguments, name) is not None:
                parser.error(f"--{name.replace('_', '-')} goes with --model only")
    if arguments.schedulers is None:
        arguments.schedulers = ["fifo", "priority", "credit"]
    if arguments.shrink is None:
        arguments.shrink = 1
    if arguments.steps is None:
        arguments.steps = 5
    if arguments.warm_up is None:
        arguments.warm_up = 2
    element = DTYPES[arguments.dtype]
    if arguments.sizes is None:
        arguments.sizes = [max(size, element) for size in parse_sizes(_SIZES)]
    for size in arguments.sizes:
        if size == 0 or size % element != 0:
            parser.error(
                f"--sizes: {size} bytes are no whole number of elements above 0: one of {arguments.dtype} has {element}"
            )
    if arguments.op is None:
        arguments.op = "average" if bandwidth else "sum"
    if arguments.op in COLLECTIVES:
        for name, given in (
            ("--mode bandwidth", bandwidth),
            ("--out-of-place", arguments.out_of_place),
            ("--buffers", arguments.buffers),
            ("--tensors", arguments.tensors is not None),
            ("--against raw", "raw" in arguments.against),
        ):
            if given:
                parser.error(f"{name} is for push_pull; {arguments.op} is measured one at a time")
    if arguments.reuse_outputs and not arguments.out_of_place:
        parser.error("--reuse-outputs goes with --out-of-place")
    if bandwidth and not arguments.out_of_place and arguments.op not in _STABLE:
        parser.error(
            f"--mode bandwidth repeats the operation on its own result, and a {arguments.op} would grow: "
            f"take --op {', '.join(_STABLE)}, or --out-of-place"
        )
    if arguments.rounds is None:
        arguments.rounds = 0  # by size
    if arguments.tensors is None:
        arguments.tensors = 4 if bandwidth else 1
    if arguments.workers is None:
        arguments.workers = 2
    if arguments.servers is None:
        arguments.servers = 0 if arguments.transport == "local" else 1
    if arguments.transport == "local" and arguments.servers > 0:
        parser.error("--transport local is without servers: leave --servers out")
    if arguments.servers == 0 and arguments.transport not in (None, "local", "auto"):
        parser.error(f"--transport {arguments.transport} leads to servers: with --servers 0 there are none")
    return arguments
