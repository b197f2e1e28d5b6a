"""A worker of a job that is measured: tensors in the memory of a GPU, round after round, several in flight.

    bpslaunch --workers 1 --servers 1 -- python3 -m gpu.rates --out rates.json

GB/s of tensor: each byte goes to the host once and comes back once. Results are compared at the end: a wrong one is a
failure. Needs NumPy and no framework.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import library as bps
from .values import Trainer, same

MIB = 1 << 20
SECONDS = 1.5  # of a size


def agree(trainer: Trainer, number: float) -> float:
    """The number that rank 0 has."""
    own = np.array([number if trainer.session.rank == 0 else 0], dtype=np.float64)
    request = trainer.session.push_pull(
        trainer.session.declare("agree", bps.FLOAT64, 1), own.ctypes.data, own.ctypes.data
    )
    request.wait()
    request.free()
    return float(own[0])


class Flight:
    """Tensors of one size, each again as soon as its result is in the stream."""

    def __init__(self, trainer: Trainer, size: int, tensors: int) -> None:
        self._trainer, self._count = trainer, size // 4
        self.bytes = size * tensors
        self._memory = [trainer.memory(np.float32, self._count) for _ in range(tensors)]
        numbers = np.arange(self._count) % 1000 + 2 * trainer.session.rank
        host = trainer.pinned(np.float32, self._count)
        host[:] = numbers
        for memory in self._memory:
            trainer.gpu.to_device(memory, host.ctypes.data, size, trainer.stream)
        trainer.gpu.synchronize(trainer.stream)
        trainer.gpu.release_pinned(host.ctypes.data)
        self._names = [f"rate.{size}.{number}" for number in range(tensors)]

    def _submit(self, number: int) -> bps.Request:
        memory = self._memory[number]
        name = self._names[number]
        return self._trainer.push_pull(name, bps.FLOAT32, self._count, memory, memory, op=bps.AVERAGE)

    def run(self, rounds: int) -> float:
        """Seconds, until all results are in the GPU's memory."""
        trainer, tensors = self._trainer, len(self._memory)
        began = time.perf_counter()
        flying = collections.deque(self._submit(number) for number in range(tensors))
        for turn in range(rounds * tensors):
            trainer.finish(flying.popleft())
            if turn < (rounds - 1) * tensors:
                flying.append(self._submit(turn % tensors))
        trainer.gpu.synchronize(trainer.stream)
        return time.perf_counter() - began

    def check(self) -> None:
        """The average stays what it is, however often it is taken."""
        expected = (np.arange(self._count) % 1000 + self._trainer.session.size - 1).astype(np.float32)
        for memory, name in zip(self._memory, self._names):
            same(self._trainer.read(memory, np.float32, self._count), expected, name)

    def close(self) -> None:
        """Gives the memory back."""
        for memory in self._memory:
            self._trainer.release(memory)


def measure(trainer: Trainer, size: int, tensors: int, seconds: float) -> dict[str, Any]:
    """One row."""
    flight = Flight(trainer, size, tensors)
    flight.run(2)
    once = flight.run(3) / 3
    rounds = int(agree(trainer, max(3, min(2000, seconds / once))))
    took = flight.run(rounds)
    flight.check()
    flight.close()
    return {"bytes": size, "tensors": tensors, "rounds": rounds, "gb_s": flight.bytes * rounds / took / 1e9}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="of a simulated GPU: no figure means anything")
    given = parser.parse_args()
    trainer = Trainer()
    session = trainer.session
    sizes = ((65536, 3), (MIB, 2)) if given.small else ((MIB, 256), (4 * MIB, 64), (16 * MIB, 16), (64 * MIB, 4))
    rows = [measure(trainer, size, tensors, 0.01 if given.small else SECONDS) for size, tensors in sizes]
    race = trainer.gpu.races()
    if race:
        raise AssertionError(f"the simulated GPU reports a race: {race}")
    figures = {
        "rows": rows,
        "best": max(row["gb_s"] for row in rows),
        "workers": session.size,
        "servers": session.num_servers,
        "transport": session.transport.splitlines()[0] if session.transport else "",
    }
    if session.rank == 0:
        given.out.write_text(json.dumps(figures))
        print(json.dumps(figures, indent=1))
    session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
