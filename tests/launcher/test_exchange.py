"""How processes that somebody else has started answer each other."""

from __future__ import annotations

import pathlib
import threading
import time
from typing import Any

import pytest

from launcher.environments.addresses import meeting_address
from launcher.environments.exchange import LastingExchange, encode
from launcher.environments.shared_folder import SharedFolder
from launcher.failure import LaunchError


def meet(folder: pathlib.Path, size: int, text: str) -> list[dict[str, Any]]:
    """What each rank hears."""
    answers: list[dict[str, Any]] = [{}] * size
    exchanges = [LastingExchange(SharedFolder(folder, rank, size)) for rank in range(size)]

    def one(rank: int) -> None:
        own = {"rank": rank}
        answers[rank] = exchanges[rank].meet(
            own, lambda given: [{"text": text, "you": each["rank"]} for each in given], time.monotonic() + 30
        )

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for exchange in reversed(exchanges):
        exchange.close()
    return answers


def test_each_is_answered(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "meet"
    assert meet(folder, 3, "hello") == [{"text": "hello", "you": rank} for rank in range(3)]
    assert not folder.exists()


def test_what_an_earlier_attempt_has_left_is_not_believed(tmp_path: pathlib.Path) -> None:
    folder = SharedFolder(tmp_path / "meet", 0, 3)
    for rank in range(3):
        folder.set(f"ask-{rank}", encode({"mark": f"old {rank}", "own": {"rank": rank}}))
        folder.set(f"answer-{rank}", encode({"mark": f"old {rank}", "answer": {"text": "old", "you": rank}}))
    assert meet(tmp_path / "meet", 3, "new") == [{"text": "new", "you": rank} for rank in range(3)]


def test_who_is_missing_is_named(tmp_path: pathlib.Path) -> None:
    exchange = LastingExchange(SharedFolder(tmp_path / "meet", 0, 3))
    with pytest.raises(LaunchError, match="missing are ranks 1, 2"):
        exchange.meet({}, lambda given: given, time.monotonic() + 0.2)
    exchange = LastingExchange(SharedFolder(tmp_path / "meet", 2, 3))
    with pytest.raises(LaunchError, match="rank 0 has not answered"):
        exchange.meet({}, lambda given: given, time.monotonic() + 0.2)


@pytest.mark.parametrize(
    "own, others, address",
    [
        (["10.0.0.1/24"], [], "127.0.0.1"),
        (["192.168.1.5/24", "10.0.0.1/24"], [["10.0.0.2/24"], ["10.0.0.3/24"]], "10.0.0.1"),
        # The bridge of a container engine has the same address on every host.
        (["172.17.0.1/16", "10.0.0.1/24"], [["172.17.0.1/16", "10.0.0.2/24"]], "10.0.0.1"),
        (["10.1.0.1/24"], [["10.2.0.2/24"]], "10.1.0.1"),
    ],
)
def test_the_address_where_all_meet(own: list[str], others: list[list[str]], address: str) -> None:
    assert meeting_address(own, others) == address
