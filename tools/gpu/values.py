"""A worker of a job whose tensors lie in the memory of a GPU, and whose results are compared with NumPy's.

    bpslaunch --workers 2 -- python3 -m gpu.values sums,streams,thousand

Ends with 0: all values were right; 77: the last line says what was not run here; anything else is a failure.
GPU_CHECK_CPU_RANK names a rank whose tensors are the host's. Needs NumPy and no framework.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np

from . import library as bps
from .driver import CudaError, Gpu, count

COUNTS = (1, 3, 257, 4097, 100_003, 1_000_003)
DTYPES = {
    bps.FLOAT32: np.float32,
    bps.FLOAT64: np.float64,
    bps.FLOAT16: np.float16,
    bps.INT8: np.int8,
    bps.INT32: np.int32,
    bps.INT64: np.int64,
}
NOT_RUN = 77


class NotRun(RuntimeError):
    """What is asked for is not here."""


def values(dtype: Any, count: int, rank: int, round_: int) -> Any:
    """Of which sums over few ranks are exact in every type."""
    return ((np.arange(count) * 7 + round_) % 13 + rank).astype(dtype)


def total(dtype: Any, count: int, size: int, round_: int) -> Any:
    """The sum of all ranks' values()."""
    result = values(dtype, count, 0, round_)
    for rank in range(1, size):
        result = (result + values(dtype, count, rank, round_)).astype(dtype)
    return result


def same(got: Any, expected: Any, what: str) -> None:
    """Bit by bit."""
    one, other = got.view(np.uint8), expected.view(np.uint8)
    if np.array_equal(one, other):
        return
    wrong = np.flatnonzero(got != expected)
    at = int(wrong[0]) if wrong.size else int(np.flatnonzero(one != other)[0]) // got.itemsize
    raise AssertionError(f"{what}: element {at} of {got.size} is {got[at]}, not {expected[at]}; {wrong.size} are wrong")


class Trainer:
    """The session and the GPU of this process, or memory of the host where this rank has none."""

    def __init__(self) -> None:
        self.session = bps.Session()
        self.on_gpu = os.environ.get("GPU_CHECK_CPU_RANK") != str(self.session.rank)
        self.gpu = Gpu(self.session.local_rank % count())
        self.stream = self.gpu.stream()
        self._buffers: dict[int, Any] = {}  # of a rank without a GPU
        self._staged: list[int] = []  # pinned memory that copies may still read

    def pinned(self, dtype: Any, count: int) -> Any:
        """An array in pinned memory."""
        size = max(1, count * np.dtype(dtype).itemsize)
        memory = (ctypes.c_uint8 * size).from_address(self.gpu.pinned(size))
        return np.frombuffer(memory, dtype=dtype, count=count)

    def memory(self, dtype: Any, count: int) -> int:
        """Where a tensor may lie."""
        if self.on_gpu:
            return self.gpu.allocate(max(1, count * np.dtype(dtype).itemsize))
        array = np.zeros(count, dtype=dtype)
        self._buffers[array.ctypes.data] = array
        return int(array.ctypes.data)

    def write(self, memory: int, array: Any) -> None:
        """In the stream, as a kernel would; settle() gives back what it was copied from."""
        if not self.on_gpu:
            self._buffers[memory][:] = array
            return
        host = self.pinned(array.dtype, array.size)
        host[:] = array
        self.gpu.to_device(memory, host.ctypes.data, array.nbytes, self.stream)
        self._staged.append(host.ctypes.data)

    def settle(self) -> None:
        """Waits until the stream has done all that it holds."""
        self.gpu.synchronize(self.stream)
        while self._staged:
            self.gpu.release_pinned(self._staged.pop())

    def release(self, memory: int) -> None:
        """Memory that memory() has made."""
        if self.on_gpu:
            self.gpu.release(memory)
        else:
            del self._buffers[memory]

    def read(self, memory: int, dtype: Any, count: int, stream: int = 0) -> Any:
        """What is there behind all that the stream holds."""
        if not self.on_gpu:
            return self._buffers[memory].copy()
        host = self.pinned(dtype, count)
        self.gpu.to_host(host.ctypes.data, memory, host.nbytes, stream or self.stream)
        self.gpu.synchronize(stream or self.stream)
        result = host.copy()
        self.gpu.release_pinned(host.ctypes.data)
        return result

    def push_pull(self, name: str, dtype: int, count: int, source: int, target: int, **options: Any) -> bps.Request:
        """Of this rank's memory; `options` as of Session.push_pull."""
        if not self.on_gpu:
            options = {key: value for key, value in options.items() if key in ("op", "priority")}
        else:
            options = {"gpu": self.gpu.index, "stream": self.stream, **options}
        tensor = self.session.declare(name, dtype, count)
        return self.session.push_pull(tensor, source, target, **options)

    def finish(self, request: bps.Request, stream: int = 0) -> None:
        """The stream waits for the result; on the host, this thread."""
        if self.on_gpu:
            request.wait_on_stream(stream or self.stream)
        else:
            request.wait()
        request.free()


def sums(trainer: Trainer) -> None:
    """Every type and size, in place and out of place, all in flight at once."""
    for round_ in range(3):
        flying = []
        for dtype, array_type in DTYPES.items():
            for size in COUNTS:
                source = trainer.memory(array_type, size)
                target = trainer.memory(array_type, size) if round_ % 2 else source
                mine = values(array_type, size, trainer.session.rank, round_)
                trainer.write(source, mine)
                name = f"sum.{dtype:x}.{size}"
                request = trainer.push_pull(name, dtype, size, source, target, priority=-size)
                flying.append((name, array_type, size, source, target, request))
        for name, array_type, size, source, target, request in flying:
            trainer.finish(request)
            expected = total(array_type, size, trainer.session.size, round_)
            same(trainer.read(target, array_type, size), expected, f"{name}, round {round_}")
            for memory in {source, target}:
                trainer.release(memory)
        trainer.settle()


def thousand(trainer: Trainer) -> None:
    """1,000 rounds in place, without a wait of the host for the GPU but one in each 50 rounds."""
    size, ring = 10_007, 50
    memory = trainer.memory(np.float32, size)
    inputs = [trainer.pinned(np.float32, size) for _ in range(ring)]
    outputs = [trainer.pinned(np.float32, size) for _ in range(ring)]
    for first in range(0, 1000, ring):
        for slot in range(ring):
            inputs[slot][:] = values(np.float32, size, trainer.session.rank, first + slot)
            if trainer.on_gpu:
                trainer.gpu.to_device(memory, inputs[slot].ctypes.data, 4 * size, trainer.stream)
            else:
                trainer.write(memory, inputs[slot])
            trainer.finish(trainer.push_pull("thousand", bps.FLOAT32, size, memory, memory))
            if trainer.on_gpu:
                trainer.gpu.to_host(outputs[slot].ctypes.data, memory, 4 * size, trainer.stream)
            else:
                outputs[slot][:] = trainer.read(memory, np.float32, size)
        trainer.gpu.synchronize(trainer.stream)
        for slot in range(ring):
            expected = total(np.float32, size, trainer.session.size, first + slot)
            same(outputs[slot], expected, f"round {first + slot}")


def streams(trainer: Trainer) -> None:
    """The input comes out of one stream, behind much work; the result is wanted on another one, asked for both ways."""
    size = 300_001
    memory, other = trainer.memory(np.float32, size), trainer.gpu.stream()
    for later in (True, False):
        for round_ in range(20):
            mine = values(np.float32, size, trainer.session.rank, round_)
            for _ in range(4):
                trainer.write(memory, np.full(size, -1, np.float32))
            trainer.write(memory, mine)
            request = trainer.push_pull(
                "streams", bps.FLOAT32, size, memory, memory, output_stream=other, output_later=later
            )
            if later or not trainer.on_gpu:
                trainer.finish(request, other)
            else:
                request.wait()
                request.free()
            got = trainer.read(memory, np.float32, size, other)
            same(got, total(np.float32, size, trainer.session.size, round_), f"streams, round {round_}, {later}")
            trainer.settle()


def capture(trainer: Trainer) -> None:
    """A stream that is being captured is refused, and works again afterwards."""
    memory = trainer.memory(np.float32, 1000)
    trainer.write(memory, values(np.float32, 1000, trainer.session.rank, 0))
    if trainer.on_gpu:
        trainer.gpu.synchronize(trainer.stream)
        trainer.gpu.begin_capture(trainer.stream)
        try:
            trainer.push_pull("capture", bps.FLOAT32, 1000, memory, memory)
        except bps.BytePSError as error:
            if error.code != bps.FAILED_PRECONDITION or "captured" not in str(error):
                raise
        else:
            raise AssertionError("a stream that is being captured was taken")
        finally:
            trainer.gpu.end_capture(trainer.stream)
    trainer.finish(trainer.push_pull("capture", bps.FLOAT32, 1000, memory, memory))
    same(trainer.read(memory, np.float32, 1000), total(np.float32, 1000, trainer.session.size, 0), "after a capture")


def bits(trainer: Trainer) -> None:
    """What GPUs reduce has the bits of what the host's processors reduce, and of NumPy in the order of the ranks."""
    size = 200_003
    for dtype, array_type in ((bps.FLOAT32, np.float32), (bps.FLOAT16, np.float16), (bps.FLOAT64, np.float64)):
        all_of_them = []
        for rank in range(trainer.session.size):
            random = np.random.default_rng(rank)
            all_of_them.append((random.standard_normal(size) * 10.0 ** random.integers(-3, 4, size)).astype(array_type))
        mine = all_of_them[trainer.session.rank]
        memory = trainer.memory(array_type, size)
        trainer.write(memory, mine)
        trainer.finish(trainer.push_pull(f"gpu.{dtype:x}", dtype, size, memory, memory))
        on_gpu = trainer.read(memory, array_type, size)
        on_host = mine.copy()
        tensor = trainer.session.declare(f"host.{dtype:x}", dtype, size)
        request = trainer.session.push_pull(tensor, on_host.ctypes.data, on_host.ctypes.data)
        request.wait()
        request.free()
        same(on_gpu, on_host, f"the GPU's bits and the host's, {np.dtype(array_type)}")
        wide = np.float32 if array_type is np.float16 else array_type
        expected = all_of_them[0].astype(wide)
        for other in all_of_them[1:]:
            expected = expected + other.astype(wide)
        same(on_gpu, expected.astype(array_type), f"in the order of the ranks, {np.dtype(array_type)}")


def cast(trainer: Trainer) -> None:
    """float32 in memory, float16 and bfloat16 on the bus."""
    size = 100_003
    for dtype in (bps.FLOAT16, bps.BFLOAT16):
        # Integers of few digits are exact in both.
        mine = values(np.float32, size, trainer.session.rank, 5)
        memory = trainer.memory(np.float32, size)
        trainer.write(memory, mine)
        try:
            request = trainer.push_pull(f"cast.{dtype:x}", dtype, size, memory, memory, memory_dtype=bps.FLOAT32)
        except bps.BytePSError as error:
            if error.code == bps.UNIMPLEMENTED and "kernels" in str(error):
                raise NotRun(f"bps_cast: {error}") from None
            raise
        trainer.finish(request)
        expected = total(np.float32, size, trainer.session.size, 5)
        same(trainer.read(memory, np.float32, size), expected, f"cast to {dtype:x}")
        # Rounded to nearest even, once on the way to the host; alone, nothing is added.
        if trainer.session.size == 1 and dtype == bps.FLOAT16:
            odd = np.random.default_rng(1).standard_normal(size).astype(np.float32)
            trainer.write(memory, odd)
            name = f"cast.{dtype:x}"
            trainer.finish(trainer.push_pull(name, dtype, size, memory, memory, memory_dtype=bps.FLOAT32))
            same(trainer.read(memory, np.float32, size), odd.astype(np.float16).astype(np.float32), "rounded by a cast")


def mapped(trainer: Trainer) -> None:
    """Memory that is mapped piece by piece, as PyTorch's expandable segments, in a tensor that spans pieces."""
    size = 1_500_007
    try:
        memory = trainer.gpu.mapped(4 * size)
    except CudaError as error:
        raise NotRun(f"memory that is mapped piece by piece: {error}") from None
    ordinary = trainer.gpu.allocate(4)
    print(
        f"one allocation: cuMemAlloc {trainer.gpu.is_one_allocation(ordinary)}, "
        f"cuMemMap {trainer.gpu.is_one_allocation(memory)}"
    )
    for round_ in range(3):
        trainer.write(memory, values(np.float32, size, trainer.session.rank, round_))
        trainer.finish(trainer.push_pull("mapped", bps.FLOAT32, size, memory, memory))
        got = trainer.read(memory, np.float32, size)
        same(got, total(np.float32, size, trainer.session.size, round_), f"mapped memory, round {round_}")


def nccl(trainer: Trainer) -> None:
    """The GPUs' own collectives: NCCL must be in this process afterwards."""
    sums(trainer)
    with open("/proc/self/maps") as maps:
        found = sorted({line.split()[-1] for line in maps if "libnccl" in line})
    if len(found) != 1:
        raise AssertionError(f"not one NCCL is loaded, but {found}")
    number = ctypes.c_int(0)
    ctypes.CDLL(found[0]).ncclGetVersion(ctypes.byref(number))
    print(f"NCCL used: {number.value}, {found[0]}")


SCENARIOS = {each.__name__: each for each in (sums, thousand, streams, capture, bits, cast, mapped, nccl)}


def main() -> int:
    trainer = Trainer()
    session = trainer.session
    where = f"GPU {trainer.gpu.index}" if trainer.on_gpu else "the host"
    print(f"rank {session.rank} of {session.size}, {session.num_servers} servers, {where}; {session.transport}")
    missing = []
    for name in sys.argv[1].split(","):
        try:
            SCENARIOS[name](trainer)
            trainer.settle()
            print(f"{name}: right", flush=True)
        except NotRun as why:
            missing.append(str(why))
            print(f"{name}: not run: {why}", flush=True)
    race = trainer.gpu.races()
    if race:
        raise AssertionError(f"the simulated GPU reports a race: {race}")
    session.close()
    if missing:
        print("not run: " + "; ".join(missing), flush=True)
    return NOT_RUN if missing else 0


if __name__ == "__main__":
    sys.exit(main())
