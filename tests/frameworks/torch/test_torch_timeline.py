"""Timelines (docs/timeline.md) of real jobs of PyTorch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.timeline_summary import read_timeline
from jobs import JobResult
from timelines import PART_STAGES, check_push_pull, path_of, read_whole, wait_until_home
from torch import nn

RunWorkers = Callable[..., JobResult]

STEPS = 5
# Of the weight: 8 * 300 * 4 bytes are two parts of 4800 bytes.
PARTS = {"BYTEPS_PARTITION_BYTES": "4800"}
SIZES = {"Gradient.0.weight": 9600, "Gradient.0.bias": 1200, "Gradient.1.weight": 600 * 4, "Gradient.1.bias": 8}


def _train(steps: int = STEPS) -> None:
    """Every gradient is an operation of its own, in every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 300), nn.Linear(300, 2))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(steps):
        with bps.timeline_span("step"):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().sum().backward()
            bps.timeline_mark("backward ends")
            optimizer.step()


def _session() -> None:
    bps.init()
    _train()
    bps.shutdown()


def test_every_worker_writes_one_file_of_every_operation(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_session, BYTEPS_TIMELINE=str(tmp_path / "new" / "t.json"), **PARTS)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["t.json", "t.rank1.json"]
    for rank, name in enumerate(["t.json", "t.rank1.json"]):
        timeline = read_whole(tmp_path / "new" / name)
        assert timeline.process.startswith(f"rank {rank} of 2")
        for tensor, size in SIZES.items():
            operations = timeline.operations("push_pull", tensor)
            assert [operation.args["round"] for operation in operations] == list(range(STEPS))
            for operation in operations:
                assert operation.args["parts"] == -(-size // 4800)
                check_push_pull(timeline, operation, size)
        # The program's own: every operation was submitted within one of its steps, before the backward pass ended.
        steps, ends = timeline.spans["step"], timeline.moments["backward ends"]
        assert len(steps) == len(ends) == STEPS
        for step, end, number in zip(steps, ends, range(STEPS)):
            for tensor in SIZES:
                operation = timeline.operation("push_pull", tensor, number)
                assert step.contains(operation) and operation.begin <= end


# A small tensor is whole when all workers' bytes have come; a large one is folded by shares.
LOCAL_STAGES = {"small": ("SUBMIT", "GATHER"), "large": ("SUBMIT", "GATHER", "LOCAL", "FINISH")}


def _small_and_large() -> None:
    bps.init()
    for _ in range(STEPS):
        for name, elements in (("small", 3), ("large", 1 << 18)):
            bps.push_pull(torch.ones(elements), name=name)
    bps.shutdown()


def test_workers_of_a_host_without_servers(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_small_and_large, servers=0, BYTEPS_TIMELINE=str(tmp_path / "t.json"))
    for rank in (0, 1):
        timeline = read_whole(path_of(tmp_path / "t.json", rank))
        for tensor, names in LOCAL_STAGES.items():
            operations = [span for span in timeline.operations("push_pull") if span.args["tensor"].endswith(tensor)]
            assert len(operations) == STEPS
            for operation in operations:
                stages = [timeline.stage(operation, name) for name in names]
                assert all(operation.contains(stage) for stage in stages)
                assert all(first.end == then.begin for first, then in zip(stages, stages[1:]))
                assert not timeline.parts(operation)


def test_byteps_variables_choose_steps_and_folder(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(
        _session,
        BYTEPS_TRACE_ON="1",
        BYTEPS_TRACE_DIR=str(tmp_path / "trace"),
        BYTEPS_TRACE_START_STEP="2",
        BYTEPS_TRACE_END_STEP="3",
        HOROVOD_TIMELINE=str(tmp_path / "other.json"),
        **PARTS,
    )
    assert not (tmp_path / "other.json").exists()
    for rank in ("0", "1"):
        timeline = read_whole(tmp_path / "trace" / rank / "comm.json")
        for tensor, size in SIZES.items():
            operations = timeline.operations("push_pull", tensor)
            assert [operation.args["round"] for operation in operations] == [1, 2]
            for operation in operations:
                check_push_pull(timeline, operation, size)


def _start_and_stop(path: str) -> None:
    import byteps.horovod.torch as hvd

    with pytest.raises(bps.NotInitializedError):
        hvd.start_timeline(path)
    hvd.init()
    hvd.allreduce(torch.ones(3), name="before")
    hvd.start_timeline(path, mark_cycles=True)
    with pytest.raises(bps.FailedPreconditionError, match=path.replace(".json", "")):
        hvd.start_timeline(path)
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="during")
        hvd.allreduce(torch.ones(3), name="also during")
    hvd.stop_timeline()
    with pytest.raises(bps.FailedPreconditionError, match="no timeline"):
        hvd.stop_timeline()
    hvd.allreduce(torch.ones(3), name="after")
    # Again, and ended by shutdown().
    hvd.start_timeline(path.replace(".json", ".second.json"))
    hvd.allgather(torch.ones(3), name="rows")
    hvd.shutdown()


def test_horovod_calls(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_start_and_stop, str(tmp_path / "t.json"), HOROVOD_TIMELINE="DYNAMIC")
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "t.json",
        "t.rank1.json",
        "t.second.json",
        "t.second.rank1.json",
    ]
    for name in ("t.json", "t.rank1.json"):
        timeline = read_whole(tmp_path / name)
        names = {operation.args["tensor"] for operation in timeline.operations("push_pull")}
        assert len(names) == 2 and all("during" in name for name in names)
        assert len(timeline.moments["STEP"]) == 3
    second = read_whole(tmp_path / "t.second.json")
    assert [operation.args["tensor"] for operation in second.operations("all_gather")] and not second.moments


def test_horovod_variables(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_session, HOROVOD_TIMELINE=str(tmp_path / "t.json"), HOROVOD_TIMELINE_MARK_CYCLES="1")
    for name in ("t.json", "t.rank1.json"):
        assert len(read_whole(tmp_path / name).moments["STEP"]) == STEPS


def _not_openable() -> None:
    with pytest.raises(ValueError, match="/dev/null/t"):
        bps.init()


def test_a_file_that_cannot_be_written_is_named(run_alone: RunWorkers) -> None:
    run_alone(_not_openable, BYTEPS_TIMELINE="/dev/null/t.json")


def _killed(path: str) -> None:
    bps.init()
    _train(3)
    if bps.rank() == 1:
        wait_until_home(path_of(path, 1), "Gradient.0.weight", 2)
        with bps.timeline_span("the end"):
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        _train(1)
    except bps.BytePSError:
        bps.shutdown()
    raise RuntimeError("worker 1 is dead")


def test_a_killed_worker_leaves_what_it_had_written(run_workers: RunWorkers, tmp_path: Path) -> None:
    job = run_workers(_killed, str(tmp_path / "t.json"), check=False, BYTEPS_TIMELINE=str(tmp_path / "t.json"), **PARTS)
    assert job.returncode != 0
    with pytest.raises(json.JSONDecodeError):
        json.loads((tmp_path / "t.rank1.json").read_text())
    events, whole = read_timeline(tmp_path / "t.rank1.json")
    assert not whole
    ended = [event for event in events if event["name"] == "push_pull"]
    assert {(event["args"]["tensor"], event["args"]["round"]) for event in ended} >= {
        (tensor, number) for tensor in ("Gradient.0.weight", "Gradient.1.weight") for number in range(2)
    }
    done = subprocess.run(
        [sys.executable, "-m", "byteps.timeline_summary", "t.rank1.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "has no end: its process was killed" in done.stdout and "Gradient.0.weight" in done.stdout


def test_the_tool_adds_up_and_merges(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(_session, BYTEPS_TIMELINE=str(tmp_path / "t.json"), **PARTS)

    def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "byteps.timeline_summary", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = tool("t.json", "t.rank1.json")
    assert done.returncode == 0 and "rank 0 of 2" in done.stdout and "rank 1 of 2" in done.stdout, done
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if len(line.split()) > 2}
    assert rows["Gradient.0.weight"][0] == str(STEPS)
    assert rows["step"][0] == str(STEPS)
    parts = sum(span.args["parts"] for span in read_whole(tmp_path / "t.rank1.json").operations("push_pull"))
    assert [rows[stage][0] for stage in PART_STAGES] == [str(parts)] * 3, done.stdout
    done = tool("--merge", "all.json", "t.json", "t.rank1.json")
    assert done.returncode == 0, done
    merged: list[dict[str, Any]] = json.loads((tmp_path / "all.json").read_text())
    assert {event["pid"] for event in merged} == {0, 1}
    done = tool("none.json")
    assert done.returncode == 1 and "none.json" in done.stderr, done
    (tmp_path / "text.json").write_text("text")
    done = tool("text.json")
    assert done.returncode == 1 and "text.json is no timeline" in done.stderr, done
