"""Rounds of one size, by push_pull and by its peers; the same on every rank, which meet at barriers.

    measure = Measurement(bps, settings, peers, clocks)
    row = measure.latency(size, rounds)         # the ranks are released from a barrier together, for each round
    row = measure.bandwidth(size, rounds)       # all tensors in flight all the time

What is measured takes turns with its peers, round by round (in mode bandwidth: stretch by stretch), so that whatever
else the machine does meets all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .arguments import COLLECTIVES
from .collective import CollectiveExchange, CollectiveWorkload
from .peer import Peer, results_of
from .push_pull import PushPull
from .roles import RoleClocks, RoleTimes
from .row import Row, Settings
from .workload import Workload

_WARM_UP = 2
_STRETCHES = 3  # of mode bandwidth


def rounds_for(size: int) -> int:
    """As many rounds as fit into a few seconds."""
    return max(5, min(200, 200_000_000 // max(size, 1_000_000)))


class Measurement:
    """Between bps.init() and bps.shutdown()."""

    def __init__(self, bps: Any, settings: Settings, peers: Sequence[Peer], clocks: RoleClocks) -> None:
        self._bps, self._settings, self._peers, self._clocks = bps, settings, peers, clocks

    def _workload(self, size: int) -> Workload | CollectiveWorkload:
        settings = self._settings
        bps = self._bps
        if settings.op in COLLECTIVES:
            collective = CollectiveWorkload(size, settings.dtype, settings.op, bps.rank(), bps.size())
            for peer in self._peers:
                peer.prepare(collective)
            return collective
        new = bps.empty_like if settings.buffers else torch.empty_like
        workload = Workload(size, settings.dtype, settings.op, settings.tensors, bps.rank(), bps.size(), new)
        for peer in self._peers:
            peer.prepare(workload)
        return workload

    def _row(
        self,
        workload: Workload | CollectiveWorkload,
        rounds: int,
        seconds: float,
        samples: list[float],
        cpu: RoleTimes,
        peers: dict,
    ) -> Row:
        # The servers' and the coordinator's clocks are read by every rank; rank 0's reading counts.
        mine = torch.tensor([cpu.worker], dtype=torch.float64)
        everybody = float(self._bps.push_pull(mine, average=False, name="bps_perf.cpu").item())
        cpu = RoleTimes(everybody, cpu.server, cpu.coordinator)
        return Row(self._settings, workload.size, rounds, seconds, samples, cpu, peers)

    def latency(self, size: int, rounds: int = 0) -> Row:
        """The time of a round, from submission to the result: of push_pull rank 0's, of other collectives the longest
        of all ranks (the root of a broadcast is ready when the bytes have left it). The row has the median."""
        workload = self._workload(size)
        if isinstance(workload, CollectiveWorkload):
            exchange: CollectiveExchange | PushPull = CollectiveExchange(workload)
        else:
            exchange = PushPull(self._bps, workload, self._settings)
        rounds = rounds or rounds_for(workload.bytes_per_round)
        samples: list[float] = []
        of_peers: dict[str, list[float]] = {peer.name: [] for peer in self._peers}
        cpu = RoleTimes()
        for number in range(-_WARM_UP, rounds):
            workload.reset()
            exchange.spoil()
            self._bps.barrier()
            before, began = self._clocks.read(), time.perf_counter()
            results = exchange.run()
            seconds = time.perf_counter() - began
            used = self._clocks.read() - before
            workload.check(results, "byteps")
            for peer in self._peers:
                took = self._turn_of(peer, workload, peer.run)
                if number >= 0:
                    of_peers[peer.name].append(took)
            if number >= 0:
                samples.append(seconds)
                cpu += used
        if isinstance(workload, CollectiveWorkload):
            samples = self._longest(samples)
            of_peers = {name: self._longest(times) for name, times in of_peers.items()}
        peers = {name: statistics.median(times) for name, times in of_peers.items()}
        return self._row(workload, rounds, statistics.median(samples), samples, cpu, peers)

    def _longest(self, times: list[float]) -> list[float]:
        """Of each round the longest time of all ranks."""
        own = torch.tensor(times, dtype=torch.float64)
        return list(self._bps.push_pull(own, op=self._bps.Max, name="bps_perf.longest").tolist())

    def _turn_of(self, peer: Peer, workload: Workload, call: Callable[[], float | None]) -> float:
        """Seconds of one round of a peer."""
        workload.reset()
        self._bps.barrier()
        began = time.perf_counter()
        told = call()
        seconds = time.perf_counter() - began
        workload.check(results_of(peer, workload), peer.name)
        return seconds if told is None else told

    def bandwidth(self, size: int, rounds: int = 0) -> Row:
        """The time of a round is a stretch's over its number of rounds, the median of some stretches."""
        workload = self._workload(size)
        exchange = PushPull(self._bps, workload, self._settings)
        rounds = rounds or rounds_for(workload.bytes_per_round)
        exchange.stream(_WARM_UP)
        samples: list[float] = []
        stretches: list[float] = []
        of_peers: dict[str, list[float]] = {peer.name: [] for peer in self._peers}
        cpu = RoleTimes()
        for _ in range(_STRETCHES):
            workload.reset()
            exchange.spoil()
            self._bps.barrier()
            before, began = self._clocks.read(), time.perf_counter()
            times, results = exchange.stream(rounds)
            stretches.append((time.perf_counter() - began) / rounds)
            cpu += self._clocks.read() - before
            samples += times
            workload.check(results, "byteps")
            for peer in self._peers:
                # Sums of sums grow: what a peer leaves is not looked at.
                workload.reset()
                self._bps.barrier()
                began = time.perf_counter()
                told = peer.stream(rounds)
                of_peers[peer.name].append((time.perf_counter() - began if told is None else told) / rounds)
        peers = {name: statistics.median(times) for name, times in of_peers.items()}
        return self._row(workload, rounds * _STRETCHES, statistics.median(stretches), samples, cpu, peers)
