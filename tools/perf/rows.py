"""bps_perf without --model: a row for each size.

sys.exit(measure_all(arguments))
"""

from __future__ import annotations

import argparse

import byteps.torch as bps
import torch

from . import chart
from .measurement import Measurement
from .medium import medium
from .notices import Notices
from .output import make_writer
from .peer import make_peer
from .roles import RoleClocks
from .row import Settings


def measure_all(arguments: argparse.Namespace) -> int:
    """As a worker of the job."""
    torch.set_num_threads(1)
    notices = Notices()
    if arguments.scheduler is not None:
        bps.init(scheduler=arguments.scheduler)
    else:
        bps.init()
    info = bps.info()
    clocks = RoleClocks()
    carrier = medium(info, clocks.servers)
    peers = [make_peer(name, bps, carrier) for name in arguments.against]
    settings = Settings(
        mode=arguments.mode,
        workers=info.size,
        servers=info.num_servers,
        transport=carrier,
        scheduler=info.scheduler,
        dtype=arguments.dtype,
        op=arguments.op,
        out_of_place=arguments.out_of_place,
        tensors=arguments.tensors,
        buffers=arguments.buffers,
        reuse_outputs=arguments.reuse_outputs,
    )
    measurement = Measurement(bps, settings, peers, clocks)
    measure = measurement.bandwidth if arguments.mode == "bandwidth" else measurement.latency
    writer = make_writer(arguments.form, settings, arguments.against) if info.rank == 0 else None
    rows = []
    for size in arguments.sizes:
        rows.append(measure(size, arguments.rounds))
        if writer is not None:
            writer.write(rows[-1])
    notices.print_slow(info.rank)
    for peer in peers:
        peer.close()
    bps.shutdown()
    if info.rank == 0 and arguments.plot is not None:
        chart.draw(rows, arguments.plot)
    return 0
