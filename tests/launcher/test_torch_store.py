"""The store of torch.distributed by which ranks meet: how long it is waited for."""

from __future__ import annotations

import datetime
import time
from typing import NoReturn

import pytest
from launching import free_port

from launcher.environments.exchange import LastingExchange
from launcher.environments.torch_store import TorchStore
from launcher.failure import LaunchError

distributed = pytest.importorskip("torch.distributed")


def meet(port: int, seconds: float) -> None:
    exchange = LastingExchange(TorchStore("torchrun", "127.0.0.1", port, 1, 2))
    exchange.meet({}, lambda given: given, time.monotonic() + seconds)


def test_a_store_that_is_not_there() -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"the store of torchrun at 127\.0\.0\.1:.* does not answer"):
        meet(free_port(), 2.0)
    assert time.monotonic() - began < 30


def test_a_store_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0, which holds it, has all the time until the start timeout."""
    waited: list[datetime.timedelta] = []

    def connect(*_where: object, timeout: datetime.timedelta, **_more: object) -> NoReturn:
        waited.append(timeout)
        raise RuntimeError("of the test")

    monkeypatch.setattr(distributed, "TCPStore", connect)
    with pytest.raises(LaunchError, match="of the test"):
        meet(1, 600.0)
    assert len(waited) == 1 and 500 < waited[0].total_seconds() <= 600, waited
