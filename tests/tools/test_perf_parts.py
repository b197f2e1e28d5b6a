"""The parts of bps_perf, by themselves."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from perf.fold import Fold
from perf.medium import medium
from perf.pingpong import PingPong, seconds_of
from perf.roles import RoleClocks
from perf.row import RoleTimes, Row, Settings, percentile
from perf.size import parse_sizes
from perf.stream import Stream
from perf.workload import Workload

SECONDS = 60
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


class Alone:
    """A job of one."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def broadcast_object(self, value: Any, root_rank: int, name: str) -> Any:
        assert root_rank == 0 and name
        return value


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_sizes() -> None:
    assert parse_sizes("4,1K,64Ki,100M,1G") == [4, 1024, 65536, 100_000_000, 10**9]


def test_percentiles_by_nearest_rank() -> None:
    times = [float(number) for number in range(1, 11)]
    assert [percentile(times, percent) for percent in (0, 10, 50, 90, 91, 99, 100)] == [1, 1, 5, 9, 10, 10, 10]
    assert percentile([7.0], 99) == 7.0


def reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """By a fold in the data type itself, as the peers have it: rounded, or wrapped, at every step."""
    step = {"min": torch.minimum, "max": torch.maximum, "product": torch.mul}.get(op, torch.add)
    result = functools.reduce(step, tensors)
    if op != "average":
        return result
    if result.is_floating_point():
        return result / len(tensors)
    return (result.long() // len(tensors)).to(result.dtype)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 11, 12, 13, 43, 127, 128, 256, 300, 600])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_what_the_ranks_together_make(dtype: str, world: int) -> None:
    for op in ("sum", "average", "min", "max", "product"):
        ranks = [Workload(100, dtype, op, 2, rank, world) for rank in range(world)]
        inputs = [each.tensors[0] for each in ranks]
        # In rank order, in the other, and those of a kind first, which come to the greatest sum on the way.
        for order in (inputs, inputs[::-1], inputs[::2] + inputs[1::2]):
            result = reduced(order, op)
            assert torch.equal(result.double().long().to(result.dtype), result)  # whole numbers
            for each in (ranks[0], ranks[-1]):
                each.check([result, result], "the test")
        with pytest.raises(SystemExit, match=f"wrong {op} of .* by somebody"):
            ranks[0].check([result, result - 1], "somebody")
        if op == "average":  # bandwidth repeats it on its own result
            assert torch.equal(reduced([result] * world, op), result)


@pytest.mark.parametrize("world", [2, 5, 100, 240])
@pytest.mark.parametrize("op", ["sum", "average", "product"])
def test_what_any_rank_hands_in_is_seen_in_the_result(op: str, world: int) -> None:
    ranks = [Workload(1000, "int8", op, 1, rank, world) for rank in range(world)]
    neutral = torch.ones_like if op == "product" else torch.zeros_like
    for missing in range(world):
        inputs = [each.tensors[0] for each in ranks]
        inputs[missing] = neutral(inputs[missing])
        with pytest.raises(SystemExit, match=f"wrong {op}"):
            ranks[0].check([reduced(inputs, op)], "the test")


def test_inputs_come_back() -> None:
    workload = Workload(400, "float32", "sum", 2, 1, 2)
    before = workload.tensors[1].clone()
    workload.tensors[1].fill_(-1)
    workload.reset()
    assert torch.equal(workload.tensors[1], before)
    assert (workload.size, workload.bytes_per_round) == (400, 800)


def test_what_carries_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(size: int, servers: int, here: int) -> str:
        return medium(SimpleNamespace(size=size, num_servers=servers, transport="tcp (tcp)"), here)

    monkeypatch.delenv("BYTEPS_SHM", raising=False)
    assert of(1, 0, 0) == "alone"
    assert of(2, 0, 0) == "local"
    assert of(2, 2, 2) == "shm"
    assert of(2, 2, 1) == "tcp"
    monkeypatch.setenv("BYTEPS_SHM", "off")
    assert of(2, 2, 2) == "tcp"


def test_rows() -> None:
    settings = Settings("latency", 2, 1, "tcp", "credit", "float32", "sum", False, 2)
    row = Row(settings, 500_000, 4, 0.002, [0.001, 0.002, 0.002, 0.004], RoleTimes(0.4, 0.2, 0.04), {"gloo": 0.001})
    values = row.values()
    assert values["algbw_gb_s"] == pytest.approx(0.5)
    assert values["workers_cpu_s_per_gb"] == pytest.approx(100)
    assert values["servers_cpu_s_per_gb"] == pytest.approx(50)
    assert values["coordinator_cpu_s_per_gb"] == pytest.approx(10)
    assert values["gloo_ratio"] == pytest.approx(2)
    assert (values["min_us"], values["p99_us"]) == (pytest.approx(1000), pytest.approx(4000))


def test_clocks_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = f"test-{os.getpid()}"
    monkeypatch.setenv("BYTEPS_JOB_ID", job)
    # Burns until it is told to stop, half of it in a thread.
    burn = "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()\n"
    burn += "print(flush=True)\nwhile True: pass\n"
    variables = {**os.environ, "BYTEPS_JOB_ID": job, "DMLC_ROLE": "server"}
    with subprocess.Popen([sys.executable, "-c", burn], env=variables, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            clocks = RoleClocks()
            assert clocks.servers == 1
            before = clocks.read()
            assert eventually(lambda: (clocks.read() - before).server > 0.2)
            used = clocks.read() - before
            assert used.coordinator == 0
        finally:
            server.kill()
    assert eventually(lambda: clocks.read().server == 0)  # of one that has gone, nothing; and no error


@pytest.fixture
def stream() -> Iterator[Stream]:
    peer = Stream(Alone())
    yield peer
    peer.close()


@pytest.mark.parametrize("size", [4, 100_000, 5_000_000])
def test_a_plain_socket_brings_back_what_it_gets(stream: Stream, size: int) -> None:
    stream.prepare(Workload(size, "uint8", "sum", 1, 0, 1))
    stream._sent[:] = os.urandom(size)
    stream.run()
    assert stream._received == stream._sent
    stream.stream(3)
    assert stream._received == stream._sent


def test_a_plain_socket_whose_other_end_is_gone_is_an_error(stream: Stream) -> None:
    stream.prepare(Workload(5_000_000, "uint8", "sum", 1, 0, 1))
    stream._echo.kill()
    with pytest.raises(SystemExit, match="the other end of the plain socket has gone"):
        stream.run()


def test_the_other_end_goes_with_whoever_started_it() -> None:
    command = [sys.executable, str(TOOLS / "perf" / "echo.py"), "127.0.0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdout is not None and echo.stdin is not None
        assert int(echo.stdout.readline()) > 0
        echo.stdin.close()
        assert echo.wait(SECONDS) == 1


@pytest.mark.parametrize("world", [1, 2, 4])
def test_memory_alone(world: int) -> None:
    fold = Fold(SimpleNamespace(size=lambda: world))
    fold.prepare(Workload(4000, "float32", "sum", 2, 0, world))
    fold.run()
    assert len(fold._outputs) == world
    for output in fold._outputs:
        assert output.numel() == 1000 // world
        assert bool((output == world).all())


REPORT = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
976k    20      =20      38m         0.21s    193.12    5178.05       0.00
"""


def test_the_report_of_fi_pingpong() -> None:
    assert seconds_of(REPORT) == pytest.approx(5178.05e-6)


def test_fi_pingpong_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit, match="install libfabric-bin"):
        PingPong(Alone(), "verbs")


@pytest.mark.skipif(shutil.which("fi_pingpong") is None, reason="libfabric-bin is not installed")
def test_fi_pingpong_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "127.0.0.1")
    peer = PingPong(Alone(), "tcp")
    peer.prepare(Workload(1000, "float32", "sum", 3, 0, 1))
    assert peer.run() > 0
    assert peer.stream(2) == pytest.approx(2 * peer.run())


def test_slow_servers_are_told_with_how_the_others_fare() -> None:
    """A process of its own: Notices takes its standard error."""
    program = """
import os, sys, time
from perf.notices import Notices
notices = Notices()
for taken in (90, 480):
    line = f"server 5 (host h5, 10.0.0.6, pid 7) is slow: a partition takes {taken} ms from its push to its result, "
    os.write(2, (line + "with the other servers 22 ms; every tensor waits for it. Look at its network\\n").encode())
deadline = time.monotonic() + 60
while len(notices._lines) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
notices.print_slow(1)
notices.print_slow(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=TOOLS, capture_output=True, text=True, timeout=120, check=True
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("bps_perf: slow: ")]
    # Once, with the latest figures, and by rank 0 alone.
    assert told == ["bps_perf: slow: server 5 (host h5, 10.0.0.6, pid 7) (480 ms for a partition, the others 22 ms)"], (
        done.stderr
    )
