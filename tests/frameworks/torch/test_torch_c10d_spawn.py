"""Programs that start their processes themselves and tell torch.distributed alone who they are: rank, number, and a
store, as the tutorials do with torch.multiprocessing.spawn. The backend "byteps" makes a job of them."""

from __future__ import annotations

import datetime
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from jobs import DEADLINE, clean_environment

_SIZE = 3


def _begin(rank: int, way: str, where: str) -> None:
    if way == "env":
        host, port = where.split(":")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        dist.init_process_group("byteps", rank=rank, world_size=_SIZE)
    elif way == "tcp":
        dist.init_process_group("byteps", init_method=f"tcp://{where}", rank=rank, world_size=_SIZE)
    elif way == "file":
        dist.init_process_group("byteps", init_method=f"file://{where}", rank=rank, world_size=_SIZE)
    elif way == "store":
        host, port = where.split(":")
        store = dist.TCPStore(host, int(port), _SIZE, rank == 0, datetime.timedelta(seconds=DEADLINE))
        dist.init_process_group("byteps", store=store, rank=rank, world_size=_SIZE)
    elif way == "group":
        dist.init_process_group("gloo", init_method=f"tcp://{where}", rank=rank, world_size=_SIZE)
    else:
        # What a cluster says of its hosts, of which each starts several processes, is not of these.
        host, port = where.split(":")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, RANK="0", WORLD_SIZE="1")
        dist.init_process_group("byteps", rank=rank, world_size=_SIZE)


def _train(rank: int, way: str, where: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    _begin(rank, way, where)
    group = dist.new_group(backend="byteps") if way == "group" else dist.group.WORLD
    torch.set_num_threads(1)
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (rank, _SIZE, rank, _SIZE)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group)
    model(torch.full((1, 4), 1.0 + rank)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2.0] * 4] * 2
    dist.destroy_process_group()


def _run(body: Any, *arguments: Any, size: int = _SIZE) -> None:
    deadline = time.monotonic() + DEADLINE
    context = multiprocessing.spawn(body, args=arguments, nprocs=size, join=False)
    try:
        # It returns, too, when one of them has ended.
        while not context.join(timeout=max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, "they have not ended in time"
    finally:
        for process in context.processes:
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("way", ["env", "tcp", "file", "store", "group", "other variables"])
def test_spawned_processes_train(tmp_path: Path, way: str) -> None:
    where = str(tmp_path / "store") if way == "file" else f"127.0.0.1:{_free_port()}"
    _run(_train, way, where, clean_environment(BYTEPS_OP_TIMEOUT="120"))


def _refused(rank: int, where: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with pytest.raises(ValueError, match="the job rank 0 of 1"):
        dist.init_process_group("byteps", init_method=f"tcp://{where}", rank=rank, world_size=2)


def test_alone_if_asked_for() -> None:
    _run(_refused, f"127.0.0.1:{_free_port()}", clean_environment(BYTEPS_DETECT_LAUNCHER="0"), size=2)
