"""How fast push_pull is on this machine: what nccl-tests is to NCCL.

    tools/bps_perf                                  # 2 workers, 1 server, 4 B to 100 MB
    tools/bps_perf --workers 4 --servers 4 --against gloo
    tools/bps_perf --sizes 4,64K,100M --json
    tools/bps_perf --model vgg16 --schedulers fifo,credit --against gloo      # training steps
    tools/bps_perf --sizes 4K --tensors 500 --against gloo    # many at once: submitted one by one, then waited for

Each size is measured over several rounds, and every output of every round is checked. `--against gloo` runs
torch.distributed's Gloo all-reduce between the same processes, round by round in turn with push_pull, so that whatever
else the machine does meets both. Columns:

    time     median over the rounds of rank 0's time from submission to the result in place, all ranks having been
             released from a barrier together; p90 beside it
    algbw    bytes of the tensors / time
    cpu      CPU seconds of all workers and of all servers per GB of tensor, per round, of push_pull alone
    ratio    time / Gloo's time: below 1 is faster than Gloo

The same program is the launcher (as you call it) and the worker (as bpslaunch calls it). Inside a job, such as one that
netlab runs on links of a known rate, it is a worker of that job:

    tools/netlab run --hosts 4 --rate 200mbit -- bps_perf --sizes 20M --against gloo
    tools/netlab run --hosts 4 --rate 200mbit -- bps_perf --model vgg16 --shrink 8 --against gloo

`--model` replays a training step: layers are slept through for as long as the profile in tools/models says, gradients
travel for real, each with the priority of its layer in the forward pass, and a layer waits for its own. It prints
the time of a step for each scheduler, and, on links of a known rate, next to the least possible (tools/perf/bound.py).
With `--against gloo` also for buckets as DistributedDataParallel makes them. `--shrink 8` makes tensors and buckets
eight times smaller, which is as if the links were eight times faster.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from perf.bound import at_the_end, bound, first_in_first_out
from perf.model import Model, known_models, read_model

UNITS = {"": 1, "K": 1 << 10, "M": 10**6, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "G": 10**9}
DEFAULT_SIZES = "4,1K,16K,64K,256K,1M,4M,16M,100M"


def parse_size(text: str) -> int:
    """Bytes of "4", "64K", "64Ki", "100M" (K is 1024, M and G are powers of ten, as the sizes of tensors are said)."""
    digits = text.rstrip("KMGBikmgb")
    unit = text[len(digits) :].upper().removesuffix("B")
    if not digits.isdigit() or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4, 64K or 100M")
    return int(digits) * UNITS[unit]


def parse_sizes(text: str) -> list[int]:
    """A comma-separated list of sizes."""
    return [parse_size(size) for size in text.split(",") if size]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bps_perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--servers", type=int, default=1, help="server processes (default 1)")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes(DEFAULT_SIZES), help=DEFAULT_SIZES)
    parser.add_argument("--dtype", default="float32", help="a dtype of torch (default float32)")
    parser.add_argument("--out-of-place", action="store_true", help="output tensors of their own")
    parser.add_argument("--tensors", type=int, default=1, help="tensors of the size in each round (default 1)")
    parser.add_argument("--rounds", type=int, default=0, help="rounds per size (default: by size, 5 to 200)")
    parser.add_argument("--against", choices=["gloo"], help="measure this in the same run and print the ratio")
    parser.add_argument("--json", action="store_true", help="one JSON object per size")
    parser.add_argument(
        "--model", metavar="NAME", help=f"replay training steps of {', '.join(known_models())} or a file (with a slash)"
    )
    parser.add_argument(
        "--schedulers", default="fifo,priority,credit", metavar="LIST", help="with --model: these, one after the other"
    )
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="with --model: tensors N times smaller")
    parser.add_argument(
        "--compute", type=float, metavar="S", help="with --model: seconds of computation per step (default: profile's)"
    )
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="with --model: steps measured (default 5)")
    parser.add_argument("--scheduler", metavar="NAME", help="the scheduler plugin (as BYTEPS_SCHEDULER)")
    parser.add_argument("--transport", metavar="NAME", help="the transport plugin (as BYTEPS_TRANSPORT)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(arguments: argparse.Namespace) -> int:
    """Starts this program as the workers of a job."""
    for name, value in (("BYTEPS_SCHEDULER", arguments.scheduler), ("BYTEPS_TRANSPORT", arguments.transport)):
        if value is not None:
            os.environ[name] = value
    command = [
        *(str(Path(sys.executable).parent / "bpslaunch"),),
        *("--workers", str(arguments.workers), "--servers", str(arguments.servers)),
        *("--", sys.executable, str(Path(__file__).resolve()), "--worker", *sys.argv[1:]),
    ]
    return subprocess.run(command, check=False).returncode


class Notices:
    """What the library has to say of slow servers, noticed on its way to the standard error."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        read, write = os.pipe()
        self._screen = os.dup(2)
        os.dup2(write, 2)
        os.close(write)
        self._thread = threading.Thread(target=self._pass_on, args=(read,), daemon=True)
        self._thread.start()
        atexit.register(self._close)  # after the traceback of whatever went wrong

    def _close(self) -> None:
        os.dup2(self._screen, 2)
        self._thread.join()

    def _pass_on(self, read: int) -> None:
        with open(read, "rb", buffering=0) as source:
            rest = b""
            while chunk := source.read(65536):
                with contextlib.suppress(OSError):
                    os.write(self._screen, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                self._lines += [line.decode(errors="replace") for line in lines if b" is slow: " in line]

    def slow(self) -> list[str]:
        """The slow servers, each once."""
        found = (re.search(r"server \d+ \([^)]*\)(?= is slow: )", line) for line in self._lines)
        return sorted({each.group() for each in found if each is not None})


class Servers:
    """The CPU time of the job's server processes, found by their environment."""

    def __init__(self) -> None:
        job = f"BYTEPS_JOB_ID={os.environ.get('BYTEPS_JOB_ID', '')}".encode()
        self._stats: list[Path] = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # gone, or another user's
            if job in environment and b"DMLC_ROLE=server" in environment:
                self._stats.append(process / "stat")
        self._tick = os.sysconf("SC_CLK_TCK")

    def cpu_seconds(self) -> float:
        """User and system time of all of them until now."""
        ticks = 0
        for stat in self._stats:
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / self._tick


def own_address() -> str:
    """The address of this host on its route to the coordinator."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])))
        return probe.getsockname()[0]


class Gloo:
    """torch.distributed's all-reduce between the processes of this job."""

    def __init__(self, bps: Any) -> None:
        import torch.distributed as dist

        rank, size = bps.rank(), bps.size()
        # Rank 0 listens where the others reach it, on a port the system chooses, and tells them.
        address = own_address()
        store = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False) if rank == 0 else None
        place = (address, store.port) if store is not None else None
        address, port = bps.broadcast_object(place, root_rank=0, name="bps_perf.store")
        if store is None:
            store = dist.TCPStore(address, port, size, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self._dist = dist

    def all_reduce(self, tensor: Any, async_op: bool = False) -> Any:
        """In place; what to wait for if `async_op`."""
        return self._dist.all_reduce(tensor, async_op=async_op)

    def close(self) -> None:
        """Leaves the process group."""
        self._dist.destroy_process_group()


def rounds_for(size: int) -> int:
    """As many rounds as fit into a few seconds."""
    return max(5, min(200, 200_000_000 // max(size, 1_000_000)))


def quantile(times: list[float], q: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(size: int, arguments: argparse.Namespace, bps: Any, gloo: Gloo | None, servers: Servers) -> dict[str, Any]:
    """Rounds of one size; the same on every rank, which meet at barriers."""
    import torch

    dtype = getattr(torch, arguments.dtype)
    elements = max(1, size // torch.empty(0, dtype=dtype).element_size())
    bytes_ = elements * torch.empty(0, dtype=dtype).element_size()
    # Small whole numbers: every sum is exact in every dtype.
    pattern = (torch.arange(elements) % 7).to(dtype)
    source = pattern + bps.rank()
    expected = pattern * bps.size() + sum(range(bps.size()))
    tensors = [torch.empty_like(source) for _ in range(arguments.tensors)]
    outputs = [torch.empty_like(source) for _ in tensors] if arguments.out_of_place else tensors
    name = f"bps_perf.{arguments.dtype}.{elements}"
    rounds = arguments.rounds or rounds_for(bytes_ * len(tensors))

    def push_pull() -> None:
        if arguments.out_of_place:
            handles = [bps.push_pull_async(t, average=False, name=f"{name}.{i}") for i, t in enumerate(tensors)]
            for output, handle in zip(outputs, handles):
                output.copy_(bps.synchronize(handle))
            return
        handles = [bps.push_pull_async_inplace(t, average=False, name=f"{name}.{i}") for i, t in enumerate(tensors)]
        for handle in handles:
            bps.synchronize(handle)

    def all_reduce() -> None:
        assert gloo is not None
        for tensor in tensors:
            gloo.all_reduce(tensor)

    times: dict[str, list[float]] = {"byteps": [], "gloo": []}
    cpu = [0.0, 0.0]

    def one(kind: str, call: Callable[[], object], keep: bool) -> None:
        for tensor in tensors:
            tensor.copy_(source)
        bps.barrier()
        before = time.process_time(), servers.cpu_seconds()
        started = time.perf_counter()
        call()
        elapsed = time.perf_counter() - started
        after = time.process_time(), servers.cpu_seconds()
        if not all(torch.equal(result, expected) for result in (outputs if kind == "byteps" else tensors)):
            raise SystemExit(f"bps_perf: rank {bps.rank()}: wrong sum of {bytes_} bytes by {kind}")
        if keep:
            times[kind].append(elapsed)
            if kind == "byteps":
                cpu[0] += after[0] - before[0]
                cpu[1] += after[1] - before[1]

    for index in range(rounds + 2):
        one("byteps", push_pull, index >= 2)
        if gloo is not None:
            one("gloo", all_reduce, index >= 2)

    workers_cpu = bps.push_pull(torch.tensor([cpu[0]], dtype=torch.float64), average=False, name="bps_perf.cpu")
    gigabytes = bytes_ * len(tensors) * rounds / 1e9
    median = statistics.median(times["byteps"])
    row: dict[str, Any] = {
        "bytes": bytes_,
        "rounds": rounds,
        "time_us": median * 1e6,
        "p90_us": quantile(times["byteps"], 0.9) * 1e6,
        "tensors": len(tensors),
        "algbw_gb_s": bytes_ * len(tensors) / median / 1e9,
        "workers_cpu_s_per_gb": float(workers_cpu.item()) / gigabytes,
        "servers_cpu_s_per_gb": cpu[1] / gigabytes,
    }
    if gloo is not None:
        row["gloo_us"] = statistics.median(times["gloo"]) * 1e6
        row["ratio"] = row["time_us"] / row["gloo_us"]
    return row


def print_row(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    # Below a megabyte a round costs less CPU than the clock of /proc resolves.
    cpu = "-" if row["bytes"] < 10**6 else f"{row['workers_cpu_s_per_gb']:.2f}+{row['servers_cpu_s_per_gb']:.2f}"
    line = f"{row['bytes']:>12} {row['time_us']:>12.1f} {row['p90_us']:>12.1f} {row['algbw_gb_s']:>10.3f} {cpu:>12}"
    if "ratio" in row:
        line += f" {row['gloo_us']:>12.1f} {row['ratio']:>7.2f}"
    print(line, flush=True)


def load_model(arguments: argparse.Namespace) -> Model:
    """The model as the options change it."""
    try:
        model = read_model(arguments.model)
    except ValueError as error:
        raise SystemExit(f"bps_perf: {error}") from None
    model = model.shrunk(arguments.shrink) if arguments.shrink > 1 else model
    return model.lasting(arguments.compute) if arguments.compute else model


def replay_all(arguments: argparse.Namespace) -> int:
    """Steps of a model, by each scheduler and by Gloo."""
    import byteps.torch as bps
    import torch
    from perf.replay import Buckets, PushPull, replay

    torch.set_num_threads(1)
    model = load_model(arguments)
    # What netlab has measured: of a plain socket, and what the shares of the servers make of it.
    rate = float(os.environ.get("NETLAB_BYTES_PER_SECOND", "0"))
    factor = float(os.environ.get("NETLAB_OPTIMUM", "1"))
    notices = Notices()

    def row_of(kind: str, times: list[float], least: float | None) -> dict[str, Any]:
        row = {"model": arguments.model, "by": kind, "bytes": model.size, "steps": len(times)}
        row |= {"step_s": statistics.median(times), "p90_s": quantile(times, 0.9)}
        if least:
            row |= {"bound_s": least, "over_bound": row["step_s"] / least - 1}
        return row

    for index, scheduler in enumerate(arguments.schedulers.split(",")):
        os.environ["BYTEPS_SCHEDULER"] = scheduler
        bps.init()
        rank, size = bps.rank(), bps.size()
        if rank == 0 and index == 0 and not arguments.json:
            print_model(model, size, rate, factor)
        exchange = PushPull(bps, model)
        bps.barrier()
        times = replay(model, exchange, arguments.steps)
        exchange.check(model)
        row = row_of(scheduler, times, bound(model, factor / rate) if rate else None)
        if rank == 0:
            print_step(row, arguments.json)
        last = index == arguments.schedulers.count(",")
        if last and arguments.against == "gloo":
            gloo = Gloo(bps)
            buckets = Buckets(gloo, model, arguments.shrink)
            bps.barrier()
            times = replay(model, buckets, arguments.steps)
            buckets.check(size)
            ring = 2 * (size - 1) / size
            row = row_of("gloo", times, at_the_end(model, ring / rate) if rate else None)
            if rank == 0:
                print_step(row, arguments.json)
            gloo.close()
        if last:
            print_slow(notices, rank)
        bps.shutdown()
    return 0


def print_model(model: Model, size: int, rate: float, factor: float) -> None:
    print(f"{size} workers, {os.environ.get('DMLC_NUM_SERVER', '0')} servers; {model.source}")
    print(
        f"{len(model.tensors)} gradients, {model.size / 1e6:.1f} MB; "
        f"computation {model.forward + model.backward:.3f} s ({model.forward:.3f} forward)"
    )
    if rate:
        per_byte = factor / rate
        print(
            f"transfer {model.size * per_byte:.3f} s at {rate / 1e6:.1f} MB/s; a step takes at least "
            f"{bound(model, per_byte):.3f} s, first in first out {first_in_first_out(model, per_byte):.3f} s"
        )
    print(f"{'by':>10} {'step s':>9} {'p90 s':>9} {'bound s':>9} {'over':>7}", flush=True)


def print_slow(notices: Notices, rank: int) -> None:
    """The servers that held everybody up; on standard error, beside the table."""
    if rank == 0 and notices.slow():
        print(f"bps_perf: slow: {', '.join(notices.slow())}", file=sys.stderr, flush=True)


def print_step(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    line = f"{row['by']:>10} {row['step_s']:>9.3f} {row['p90_s']:>9.3f}"
    if "bound_s" in row:
        line += f" {row['bound_s']:>9.3f} {100 * row['over_bound']:>6.1f}%"
    print(line, flush=True)


def work(arguments: argparse.Namespace) -> int:
    import byteps.torch as bps
    import torch

    torch.set_num_threads(1)
    notices = Notices()
    bps.init()
    gloo = Gloo(bps) if arguments.against == "gloo" else None
    servers = Servers()
    rank = bps.rank()
    if rank == 0 and not arguments.json:
        place = "out of place" if arguments.out_of_place else "in place"
        servers_here = os.environ.get("DMLC_NUM_SERVER", "0")
        print(f"{bps.size()} workers, {servers_here} servers, {arguments.dtype}, {place}; every output checked")
        header = f"{'bytes':>12} {'time us':>12} {'p90 us':>12} {'algbw GB/s':>10} {'cpu s/GB':>12}"
        print(header + (f" {'Gloo us':>12} {'ratio':>7}" if gloo else ""), flush=True)
    for size in arguments.sizes:
        row = measure(size, arguments, bps, gloo, servers)
        if rank == 0:
            print_row(row, arguments.json)
    print_slow(notices, rank)
    if gloo is not None:
        gloo.close()
    bps.shutdown()
    return 0


def main() -> int:
    arguments = parse_arguments()
    inside = arguments.worker or os.environ.get("DMLC_ROLE") == "worker"
    if not inside:
        return launch(arguments)
    return replay_all(arguments) if arguments.model else work(arguments)


if __name__ == "__main__":
    sys.exit(main())
