"""How fast this machine copies between the host and its GPU, by the driver alone.

    python3 -m gpu.copies loop --out loop.json           # the raw two-way loop that all ratios are taken against
    python3 -m gpu.copies two --out two.json             # two processes with a loop each, at once
    python3 -m gpu.copies table --out table.json         # one way and both, three kinds of host memory

Both directions at once: GB/s of each direction. Chunks below 256 KiB measure Python's calls as much as the bus.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .driver import Gpu, count

KIB, MIB = 1 << 10, 1 << 20
WAYS = ("to host", "to device", "both")
KINDS = ("pinned", "registered", "pageable")
LATENCY_BYTES = 4 * KIB


class Bench:
    """Memory on both sides, and copies of all of it in chunks."""

    def __init__(self, size: int, kind: str = "pinned", index: int = 0) -> None:
        self.gpu = Gpu(index)
        self.size = size
        self.out, self.back = self.gpu.stream(), self.gpu.stream()
        self._device = [self.gpu.allocate(size) for _ in range(2)]
        self._maps: list[mmap.mmap] = []
        self._registered: list[int] = []
        self._pinned: list[int] = []
        self._host = [self._memory(kind) for _ in range(2)]
        self._to_host, self._to_device = self.gpu.fast_copies()
        self._pass("to device", size)  # no page is touched for the first time while a clock runs

    def _memory(self, kind: str) -> int:
        if kind == "pinned":
            self._pinned.append(self.gpu.pinned(self.size))
            return self._pinned[-1]
        shared = mmap.MAP_SHARED if kind == "registered" else mmap.MAP_PRIVATE
        memory = mmap.mmap(-1, self.size, flags=shared | mmap.MAP_ANONYMOUS)
        memory.write(bytes(self.size))
        self._maps.append(memory)
        if kind == "registered":
            self._registered.append(self.gpu.register(memory))
            return self._registered[-1]
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def _pass(self, way: str, chunk: int) -> None:
        """All of the memory, once in each direction that is asked for."""
        (source, target), (landing, leaving) = self._device, self._host
        to_host, to_device, out, back = self._to_host, self._to_device, self.out, self.back
        refused = 0
        for offset in range(0, self.size, chunk):
            if way != "to device":
                refused |= to_host(landing + offset, source + offset, chunk, out)
            if way != "to host":
                refused |= to_device(target + offset, leaving + offset, chunk, back)
        if refused:
            raise RuntimeError(f"a copy of {chunk} bytes was refused ({refused})")
        self.gpu.synchronize(out)
        self.gpu.synchronize(back)

    def rate(self, way: str, chunk: int, seconds: float) -> float:
        """GB/s of a direction: the median of the passes."""
        chunk = min(chunk, self.size)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            began = time.perf_counter()
            self._pass(way, chunk)
            times.append(time.perf_counter() - began)
        return self.size / statistics.median(times) / 1e9

    def latency(self, by: str, rounds: int) -> float:
        """Microseconds until the host knows of 4 KiB on the host."""
        gpu, event = self.gpu, self.gpu.event()
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            self._to_host(self._host[0], self._device[0], LATENCY_BYTES, self.out)
            if by == "waiting":
                gpu.synchronize(self.out)
            else:
                gpu.record(event, self.out)
                while not gpu.has_come(event):
                    pass
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e6

    def close(self) -> None:
        """Gives the memory back."""
        for address in self._device:
            self.gpu.release(address)
        for address in self._pinned:
            self.gpu.release_pinned(address)
        for address in self._registered:
            self.gpu.unregister(address)


def loop(small: bool) -> dict[str, Any]:
    """The raw loop, by chunk."""
    bench = Bench(MIB if small else 256 * MIB)
    chunks = (64 * KIB, 256 * KIB) if small else (256 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
    rows = [{"chunk": chunk, "gb_s": bench.rate("both", chunk, 0.01 if small else 0.4)} for chunk in chunks]
    bench.close()
    return {"rows": rows, "best": max(row["gb_s"] for row in rows)}


def one_of_two(small: bool, index: int) -> None:
    """A process of two(): says when it is ready, begins when it is told."""
    bench = Bench(MIB if small else 256 * MIB, index=index)
    bench.rate("both", 4 * MIB, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    print(bench.rate("both", 4 * MIB, 0.01 if small else 1.5), flush=True)


def two(small: bool, run: Callable[..., Any] = subprocess.Popen) -> dict[str, Any]:
    """Two loops at once, each in a process, of GPUs of their own where there are two."""
    gpus = count()
    processes = []
    for number in range(2):
        command = [sys.executable, "-m", "gpu.copies", "one", "--gpu", str(number % gpus)]
        command += ["--small"] if small else []
        processes.append(run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in processes:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("a process with a loop has ended before it was ready")
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    rates = [float(process.communicate()[0]) for process in processes]
    return {"rates": rates, "sum": sum(rates), "gpus": min(2, gpus)}


def table(small: bool) -> dict[str, Any]:
    """All ways, chunks and kinds, and how long the host is in the dark."""
    chunks = (64 * KIB, 256 * KIB) if small else tuple(64 * KIB << shift for shift in range(0, 13, 2))
    rows = []
    for kind in KINDS[:2] if small else KINDS:  # the simulated GPU takes pinned memory alone
        bench = Bench(MIB if small else 256 * MIB, kind)
        for chunk in chunks:
            rates = {way: bench.rate(way, chunk, 0.005 if small else 0.1) for way in WAYS}
            rows.append({"kind": kind, "chunk": chunk, **rates})
        if kind == "pinned":
            latency = {by: bench.latency(by, 20 if small else 1000) for by in ("waiting", "asking")}
        bench.close()
    return {"rows": rows, "latency_us": latency}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("loop", "two", "one", "table"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="of a simulated GPU: no figure means anything")
    parser.add_argument("--gpu", type=int, default=0)
    given = parser.parse_args()
    if given.what == "one":
        one_of_two(given.small, given.gpu)
        return 0
    figures = {"loop": loop, "two": two, "table": table}[given.what](given.small)
    given.out.write_text(json.dumps(figures))
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
