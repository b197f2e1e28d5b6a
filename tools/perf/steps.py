"""bps_perf --model: training steps by each scheduler, and by Gloo.

sys.exit(replay_all(arguments))
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

import byteps.torch as bps
import torch

from . import chart
from .bound import at_the_end, bound, first_in_first_out
from .gloo import Gloo
from .model import Model, read_model
from .notices import Notices
from .replay import Buckets, PushPull, replay
from .row import percentile


def _load_model(arguments: argparse.Namespace) -> Model:
    """The model as the options change it."""
    try:
        model = read_model(arguments.model)
    except ValueError as error:
        raise SystemExit(f"bps_perf: {error}") from None
    model = model.shrunk(arguments.shrink) if arguments.shrink > 1 else model
    return model.lasting(arguments.compute) if arguments.compute else model


def replay_all(arguments: argparse.Namespace) -> int:
    """In one job, by one session after the other."""
    torch.set_num_threads(1)
    model = _load_model(arguments)
    # What netlab has measured: of a plain socket, and what the shares of the servers make of it.
    rate = float(os.environ.get("NETLAB_BYTES_PER_SECOND", "0"))
    factor = float(os.environ.get("NETLAB_OPTIMUM", "1"))
    notices = Notices()

    def row_of(kind: str, times: list[float], least: float | None) -> dict[str, Any]:
        row = {"model": arguments.model, "by": kind, "bytes": model.size, "steps": len(times)}
        row |= {"step_s": statistics.median(times), "p90_s": percentile(times, 90), "steps_s": times}
        if least:
            row |= {"bound_s": least, "over_bound": row["step_s"] / least - 1}
        return row

    steps: list[chart.Steps] = []

    def told(kind: str, times: list[float], least: float | None) -> None:
        _print_step(row_of(kind, times, least), as_json)
        steps.append(chart.Steps(kind, times, least))

    as_json = arguments.form == "json"
    # A name that is wrong ends the run before the first step, not hours later between two.
    for scheduler in arguments.schedulers[1:]:
        os.environ["BYTEPS_SCHEDULER"] = scheduler
        bps.init()
        bps.shutdown()
    for index, scheduler in enumerate(arguments.schedulers):
        os.environ["BYTEPS_SCHEDULER"] = scheduler
        bps.init()
        rank, size, servers = bps.rank(), bps.size(), bps.info().num_servers
        if rank == 0 and index == 0 and not as_json:
            _print_model(model, size, servers, rate, factor)
        exchange = PushPull(bps, model)
        bps.barrier()
        times = replay(model, exchange, arguments.steps, arguments.warm_up)
        exchange.check(model)
        if rank == 0:
            told(scheduler, times, bound(model, factor / rate) if rate else None)
        last = index == len(arguments.schedulers) - 1
        if last and "gloo" in arguments.against:
            gloo = Gloo(bps)
            buckets = Buckets(gloo, model, arguments.shrink)
            bps.barrier()
            times = replay(model, buckets, arguments.steps, arguments.warm_up)
            buckets.check(size)
            ring = 2 * (size - 1) / size
            if rank == 0:
                told("gloo", times, at_the_end(model, ring / rate) if rate else None)
            gloo.close()
        if last:
            notices.print_slow(rank)
        bps.shutdown()
    if rank == 0 and arguments.plot is not None:
        title = f"{arguments.model}: {model.size / 1e6:.1f} MB of gradients, {size} workers, {servers} servers"
        chart.draw_steps(title, model.forward + model.backward, steps, arguments.plot)
    return 0


def _print_model(model: Model, size: int, servers: int, rate: float, factor: float) -> None:
    print(f"{size} workers, {servers} servers; {model.source}")
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


def _print_step(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    line = f"{row['by']:>10} {row['step_s']:>9.3f} {row['p90_s']:>9.3f}"
    if "bound_s" in row:
        line += f" {row['bound_s']:>9.3f} {100 * row['over_bound']:>6.1f}%"
    print(line, flush=True)
