"""The figures of one size.

    row = Row(settings, workload, samples, seconds_per_round, cpu, peers={"gloo": [...]})
    row.values()            # for --json and --csv: names and numbers

A round is all tensors once.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

from .roles import RoleTimes


def percentile(times: list[float], percent: float) -> float:
    """The least of them that so many percent do not exceed."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all rows of a run have in common."""

    mode: str  # "latency" or "bandwidth"
    workers: int
    servers: int
    transport: str  # as people say it: "tcp", "shm", "local"
    scheduler: str
    dtype: str
    op: str
    out_of_place: bool
    tensors: int
    buffers: bool = False
    reuse_outputs: bool = False

    @property
    def keeps_outputs(self) -> bool:
        """Results go into the same tensors, round after round. (Memory of BytePS takes some making.)"""
        return self.out_of_place and (self.buffers or self.reuse_outputs)

    def title(self) -> str:
        """One line for people."""
        place = "out of place" if self.out_of_place else "in place"
        place += " in buffers" if self.buffers else " into the same outputs" if self.keeps_outputs else ""
        many = f", {self.tensors} tensors at once" if self.tensors > 1 else ""
        return (
            f"{self.mode}: {self.workers} workers, {self.servers} servers, transport {self.transport}, scheduler "
            f"{self.scheduler}; {self.dtype}, {self.op}, {place}{many}"
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """`samples`: seconds of each round (of each operation in mode bandwidth); `seconds`: what counts as the time."""

    settings: Settings
    size: int  # bytes of one tensor
    rounds: int
    seconds: float  # of a round
    samples: list[float]
    cpu: RoleTimes  # seconds of all rounds; worker: of all workers
    peers: dict[str, float]  # seconds of a round

    @property
    def bytes_per_round(self) -> int:
        """Of all tensors."""
        return self.size * self.settings.tensors

    @property
    def gigabytes_per_second(self) -> float:
        """Of tensor, not of what crosses the network."""
        return self.bytes_per_round / self.seconds / 1e9

    def cpu_per_gigabyte(self) -> RoleTimes:
        """CPU seconds per GB of tensor."""
        gigabytes = self.bytes_per_round * self.rounds / 1e9
        return RoleTimes(*(each / gigabytes for each in dataclasses.astuple(self.cpu)))

    def values(self) -> dict[str, Any]:
        """Everything, in the order of the columns."""
        cpu = self.cpu_per_gigabyte()
        settings = self.settings
        values: dict[str, Any] = {
            "bytes": self.size,
            "tensors": settings.tensors,
            "rounds": self.rounds,
            "mode": settings.mode,
            "workers": settings.workers,
            "servers": settings.servers,
            "transport": settings.transport,
            "scheduler": settings.scheduler,
            "dtype": settings.dtype,
            "op": settings.op,
            "place": "out" if settings.out_of_place else "in",
            "buffers": settings.buffers,
            "reuse_outputs": settings.keeps_outputs,
            "time_us": self.seconds * 1e6,
            "min_us": min(self.samples) * 1e6,
            "mean_us": statistics.fmean(self.samples) * 1e6,
            "p50_us": statistics.median(self.samples) * 1e6,
            **{f"p{percent}_us": percentile(self.samples, percent) * 1e6 for percent in (90, 99)},
            "max_us": max(self.samples) * 1e6,
            "algbw_gb_s": self.gigabytes_per_second,
            "workers_cpu_s_per_gb": cpu.worker,
            "servers_cpu_s_per_gb": cpu.server,
            "coordinator_cpu_s_per_gb": cpu.coordinator,
        }
        for name, seconds in self.peers.items():
            values[f"{name}_us"] = seconds * 1e6
            values[f"{name}_ratio"] = self.seconds / seconds
        return values
