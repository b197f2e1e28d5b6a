"""How processes that somebody else has started answer each other."""

from __future__ import annotations

import pathlib
import socket
import threading
import time
from typing import Any

import pytest
from launching import wait_until

from launcher.environments import slurm
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


def test_all_hear_that_rank_0_has_failed(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "meet"
    failures = [""] * 3

    def refuse(_given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise LaunchError("no server binary")

    def one(rank: int) -> None:
        with pytest.raises(LaunchError) as failure:
            LastingExchange(SharedFolder(folder, rank, 3)).meet({}, refuse, time.monotonic() + 60)
        failures[rank] = str(failure.value)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == ["no server binary", *[f"rank 0 (host {socket.gethostname()}) has failed: no server binary"] * 2]
    assert not folder.exists()


def test_who_has_come_hears_who_is_missing(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "meet"
    heard: list[str] = []

    def come() -> None:
        with pytest.raises(LaunchError) as failure:
            LastingExchange(SharedFolder(folder, 2, 3)).meet({}, lambda given: given, time.monotonic() + 60)
        heard.append(str(failure.value))

    thread = threading.Thread(target=come)
    thread.start()
    wait_until((folder / "ask-2").exists, lambda: "rank 2 has not asked")
    with pytest.raises(LaunchError, match="missing are ranks 1:"):
        LastingExchange(SharedFolder(folder, 0, 3)).meet({}, lambda given: given, time.monotonic() + 0.5)
    thread.join()
    why = "missing are ranks 1: they have not come to bps.init()"
    assert heard == [f"rank 0 (host {socket.gethostname()}) has failed: {why}"]
    assert not folder.exists()


def test_nodes_of_slurm_from_which_nobody_has_come(tmp_path: pathlib.Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    step.update(SLURM_STEP_NODELIST="n[1-20]", BYTEPS_RENDEZVOUS_DIR=str(tmp_path))

    def come(rank: int, node: str, seconds: float, nodes: str = "n[1-20]") -> str:
        own = {**step, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": node, "SLURM_STEP_NODELIST": nodes}
        found = slurm.detect(own)
        assert found is not None
        with pytest.raises(LaunchError) as failure:
            found.exchange.meet({}, lambda given: given, time.monotonic() + seconds)
        return str(failure.value)

    thread = threading.Thread(target=come, args=(2, "n4", 60))
    thread.start()
    wait_until((tmp_path / "slurm-7-0-0" / "ask-2").exists, lambda: "rank 2 has not asked")
    text = come(0, "n1", 0.5)
    thread.join()
    silent = ", ".join(f"n{number}" for number in (2, 3, *range(5, 19)))
    assert text == f"missing are ranks 1: they have not come to bps.init(); none has come from {silent} and 2 more"
    text = come(0, "n1", 0.1, "n[1-")
    assert text == "missing are ranks 1, 2: they have not come to bps.init()"


def test_what_was_exchanged_goes_when_all_have_it(tmp_path: pathlib.Path) -> None:
    """The job's token is among it, and the training may take days."""
    folder = tmp_path / "meet"
    exchanges = [LastingExchange(SharedFolder(folder, rank, 3)) for rank in range(3)]
    threads = [
        threading.Thread(target=each.meet, args=({}, lambda given: given, time.monotonic() + 60)) for each in exchanges
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not folder.exists(), lambda: f"left: {list(folder.iterdir())}")
    # What comes later in the same folder is not of this exchange.
    SharedFolder(folder, 0, 3).set("later", "kept")
    for each in exchanges:
        each.close()
    assert (folder / "later").exists()


class Slow(SharedFolder):
    """Sees nothing until an event, or for a second."""

    until: threading.Event

    def get(self, key: str) -> str | None:
        self.until.wait(1)
        return super().get(key)


def test_rank_0_leaves_when_all_have_their_answer(tmp_path: pathlib.Path) -> None:
    """Even if its own work is done at once."""
    closed = threading.Event()
    store = Slow(tmp_path / "meet", 1, 2)
    store.until = closed

    def first() -> None:
        exchange = LastingExchange(SharedFolder(tmp_path / "meet", 0, 2))
        exchange.meet({}, lambda given: [{"you": rank} for rank in range(len(given))], time.monotonic() + 60)
        exchange.close()
        closed.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert LastingExchange(store).meet({}, lambda given: given, time.monotonic() + 10) == {"you": 1}
    thread.join()


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


def test_no_address_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with pytest.raises(LaunchError, match=r"node7 has no IPv4 address.* on the interface eth9.*DMLC_INTERFACE"):
        meeting_address([], [["10.0.0.8/24"]], "eth9")


def test_no_address_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this host's name stands for is none of it."""
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "10.9.9.9")
    with pytest.raises(LaunchError, match=r"host node8: no IPv4 address.*DMLC_INTERFACE"):
        meeting_address([], [["10.0.0.8/24"]], host="node8")
    assert meeting_address([], [], host="node8") == "127.0.0.1"
