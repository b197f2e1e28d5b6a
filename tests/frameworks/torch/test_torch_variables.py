"""Programs of torch.distributed that nothing of ours and no torchrun has started: they have RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT, and byteps.torch.init() finds the others by these."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from jobs import DEADLINE, clean_environment

_PROGRAM = """
import sys

import torch
import torch.distributed as dist

import byteps.torch as bps

order = sys.argv[1]
if order == "gloo first":
    dist.init_process_group("gloo")
bps.init()
total = bps.push_pull(torch.ones(3), average=False, name="x")
if order == "byteps first":
    dist.init_process_group("gloo")
if dist.is_initialized():
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == bps.size()
    dist.destroy_process_group()
print(f"rank {bps.rank()} of {bps.size()}, local {bps.local_rank()}: {total.tolist()}")
bps.shutdown()
bps.init()  # once more
assert bps.push_pull(torch.ones(3), average=False, name="x").tolist() == total.tolist()
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _run(tmp_path: Path, argument: str, size: int, **variables: str) -> list[tuple[int, str]]:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), **variables}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), argument],
            env=clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), BYTEPS_OP_TIMEOUT="120", **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


@pytest.mark.parametrize("order", ["byteps alone", "byteps first", "gloo first"])
def test_they_meet(tmp_path: Path, order: str) -> None:
    for rank, (code, output) in enumerate(_run(tmp_path, order, 3)):
        assert code == 0, output
        assert f"rank {rank} of 3, local {rank}: [3.0, 3.0, 3.0]" in output


def test_alone_if_asked_for(tmp_path: Path) -> None:
    for code, output in _run(tmp_path, "byteps alone", 2, BYTEPS_DETECT_LAUNCHER="0"):
        assert code == 0, output
        assert "rank 0 of 1, local 0: [1.0, 1.0, 1.0]" in output


def test_a_rank_that_cannot_be(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    variables = clean_environment(RANK="3", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    done = subprocess.run(
        [sys.executable, str(program), "byteps alone"],
        env=variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode != 0
    assert "RANK=3 and WORLD_SIZE=2: the rank must be one of 0 to 1" in done.stderr
