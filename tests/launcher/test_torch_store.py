"""The store of torch.distributed by which ranks meet: how long it is waited for."""

from __future__ import annotations

import datetime
import pathlib
import re
import socket
import subprocess
import sys
import time
from typing import Any, NoReturn

import pytest
from launching import DEADLINE, free_port

from launcher.environments.exchange import LastingExchange
from launcher.environments.torch_store import TorchStore
from launcher.failure import LaunchError

distributed = pytest.importorskip("torch.distributed")


def meet(port: int, seconds: float) -> None:
    exchange = LastingExchange(TorchStore("torchrun", "127.0.0.1", port, 1, 2))
    exchange.meet({}, lambda given: given, time.monotonic() + seconds)


def test_a_store_that_is_not_there() -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"the store of torchrun at 127\.0\.0\.1:.* does not answer: .*refused"):
        meet(free_port(), 2.0)
    assert time.monotonic() - began < 30


def test_a_store_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may come when others have waited for it."""
    port, held = free_port(), []
    real = socket.create_connection

    def connect(*arguments: Any) -> socket.socket:
        try:
            return real(*arguments)
        except ConnectionRefusedError:
            if not held:
                held.append(distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))
            raise

    monkeypatch.setattr(socket, "create_connection", connect)
    store = TorchStore("torchrun", "127.0.0.1", port, 1, 2)
    store.open(time.monotonic() + 60)
    store.set("key", "value")
    assert len(held) == 1 and held[0].get("byteps/key") == b"value"


def test_it_has_all_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0, which holds it, has all the time until the start timeout."""
    waited: list[datetime.timedelta] = []

    def connect(*_where: object, timeout: datetime.timedelta, **_more: object) -> NoReturn:
        waited.append(timeout)
        raise RuntimeError("of the test")

    monkeypatch.setattr(distributed, "TCPStore", connect)
    with socket.create_server(("127.0.0.1", 0)) as one, pytest.raises(LaunchError, match="of the test"):
        meet(one.getsockname()[1], 600.0)
    assert len(waited) == 1 and 500 < waited[0].total_seconds() <= 600, waited


_WAITS = """
import os, signal, sys, threading, time
from launcher.environments.exchange import LastingExchange
from launcher.environments.torch_store import TorchStore

signal.signal(signal.SIGINT, signal.default_int_handler)
sent = []

def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

store = TorchStore("torchrun", "127.0.0.1", int(sys.argv[1]), 1, 2)
import torch.distributed

threading.Timer(1.0, interrupt).start()
try:
    LastingExchange(store).meet({}, lambda given: given, time.monotonic() + 60)
except KeyboardInterrupt:
    print(f"after {time.monotonic() - sent[0]:.3f} s")
"""


def test_an_interrupt_ends_the_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WAITS, str(free_port())],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=pathlib.Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"after (\S+) s\n", done.stdout)
    assert found is not None and float(found[1]) < 20, done.stdout + done.stderr
