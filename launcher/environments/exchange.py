"""How the processes of a job that another launcher has started exchange what they need to meet."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from ..failure import LaunchError

Answer = Callable[["list[dict[str, Any]]"], "list[dict[str, Any]]"]
_POLL_SECONDS = 0.05
_FAREWELL_SECONDS = 5.0  # for the others to take their answer, when rank 0 leaves
_STORE_SECONDS = 2.0  # for a store to answer then
_NAMED_NODES = 16  # at most, in an error


class Exchange(Protocol):
    """Every process gives something; rank 0 answers each."""

    def meet(self, own: dict[str, Any], answer: Answer, deadline: float) -> dict[str, Any]:
        """What rank 0 has answered to us.

        Args:
            own: what we give
            answer: called in rank 0 alone, with what all have given, by rank; what it returns is for each
            deadline: of time.monotonic()
        """

    def give_up(self) -> None:
        """From another thread: meet() ends with a LaunchError, if this exchange can; nothing of this process stays in
        its store then."""

    can_abort: bool  # whether the launcher can be told to end the job, until close()

    def close(self) -> None:
        """All processes have met."""

    def abort(self, code: int) -> None:
        """In place of close(): the launcher ends the job, with this exit code, and this process with it."""


def encode(value: dict[str, Any]) -> str:
    """As one word."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def decode(text: str | bytes) -> dict[str, Any]:
    """What was encoded."""
    return json.loads(base64.urlsafe_b64decode(text))


class NoExchange:
    """That of a process without others."""

    can_abort = False

    def meet(self, own: dict[str, Any], answer: Answer, _deadline: float) -> dict[str, Any]:
        """See Exchange."""
        return answer([own])[0]

    def give_up(self) -> None:
        """See Exchange."""

    def close(self) -> None:
        """See Exchange."""

    def abort(self, _code: int) -> None:
        """See Exchange."""
        raise NotImplementedError


class Fenced(Protocol):
    """A store of a launcher: what was put is seen by all after the next fence, which all must reach."""

    rank: int
    size: int
    can_abort: bool

    def put(self, key: str, value: str) -> None:
        """Offers a value under a key of our own."""

    def fence(self, deadline: float) -> None:
        """Waits for all."""

    def get(self, key: str, rank: int) -> str:
        """What `rank` has put."""

    def close(self) -> None:
        """Leaves the store."""

    def abort(self, code: int) -> None:
        """See Exchange."""


class FencedExchange:
    """An exchange by a store with fences: two of them."""

    def __init__(self, store: Fenced) -> None:
        self._store = store
        self.can_abort = store.can_abort

    def meet(self, own: dict[str, Any], answer: Answer, deadline: float) -> dict[str, Any]:
        """See Exchange."""
        store = self._store
        store.put(f"byteps-own-{store.rank}", encode(own))
        store.fence(deadline)
        failure = None
        if store.rank == 0:
            given = [decode(store.get(f"byteps-own-{rank}", rank)) for rank in range(store.size)]
            try:
                answers = answer(given)
            except LaunchError as error:
                # The others wait at the fence: they must hear of it.
                failure = error
                answers = [failed(error)] * store.size
            for rank, each in enumerate(answers):
                store.put(f"byteps-answer-{rank}", encode(each))
        store.fence(deadline)
        if failure is not None:
            raise failure
        return checked(decode(store.get(f"byteps-answer-{store.rank}", 0)))

    def give_up(self) -> None:
        """See Exchange. It cannot: the launcher's fence ends with the process, and its store with the job."""

    def close(self) -> None:
        """See Exchange."""
        self._store.close()

    def abort(self, code: int) -> None:
        """See Exchange."""
        self._store.abort(code)


class Lasting(Protocol):
    """A store whose entries outlive the processes, also those of an earlier attempt."""

    rank: int
    size: int

    def open(self, deadline: float) -> None:
        """Comes to the store; LaunchError if it is not there by the deadline, of time.monotonic()."""

    def set(self, key: str, value: str) -> None:
        """Replaces the value of a key."""

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""

    def remove(self, key: str) -> None:
        """Removes a key, if it is there."""

    def close(self) -> None:
        """Leaves the store."""


class LastingExchange:
    """An exchange by a store that keeps what earlier attempts have left.

    Each process asks under its rank, with a mark of its own; rank 0 answers with the mark that it saw, and with its
    own, which each process puts back when it has taken the answer. So an answer that an earlier attempt has left is
    never taken, and rank 0 leaves the store when all have theirs.
    """

    can_abort = False

    def __init__(self, store: Lasting, where: str = "", node: str = "", nodes: Callable[[], list[str]] = list) -> None:
        """All but the store is for an error: for who has waited in vain.

        Args:
            store: by which they meet
            where: they meet; each may see another place
            node: what the launcher calls this host
            nodes: all hosts of the job, as far as the launcher tells them
        """
        self._store = store
        self._node = node
        self._nodes = nodes
        self._where = f"; they meet in {where}" if where else ""
        self._over = threading.Event()
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._left = False

    def meet(self, own: dict[str, Any], answer: Answer, deadline: float) -> dict[str, Any]:
        """See Exchange. Nothing of this process stays in the store if it fails."""
        mark = uuid.uuid4().hex
        rank = self._store.rank
        self._store.open(deadline)
        try:
            self._store.set(f"ask-{rank}", encode({"mark": mark, "own": own, "node": self._node}))
            return self._answer_all(mark, answer, deadline) if rank == 0 else self._take(mark, deadline)
        except BaseException:
            with contextlib.suppress(Exception):  # The store may be what has failed.
                self._store.remove(f"ask-{rank}")
                self._leave()
            raise

    def give_up(self) -> None:
        """See Exchange. Rank 0 tells those that have come."""
        self._given_up.set()

    def close(self) -> None:
        """See Exchange. Waits for a rank that has not taken its answer yet, for a few seconds."""
        if self._thread is not None:
            self._thread.join(_FAREWELL_SECONDS)
            self._over.set()
            self._thread.join(_STORE_SECONDS)
            if self._thread.is_alive():
                return  # The store hangs.
        self._leave()

    def abort(self, code: int) -> None:
        """See Exchange."""
        raise NotImplementedError

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._store.close()

    def _take(self, mark: str, deadline: float) -> dict[str, Any]:
        store = self._store
        while True:
            text = store.get(f"answer-{store.rank}")
            if text is not None:
                found = decode(text)
                if found["mark"] == mark:
                    store.set(f"taken-{store.rank}", found["by"])
                    return checked(found["answer"])
            if time.monotonic() > deadline:
                raise LaunchError(
                    "rank 0 has not answered: it has not come to bps.init(), or not with the same store" + self._where
                )
            self._pause()

    def _pause(self) -> None:
        if self._given_up.wait(_POLL_SECONDS):
            raise LaunchError("told to end while it waited for the others")

    # ---- In rank 0 ----

    def _answer_all(self, own_mark: str, answer: Answer, deadline: float) -> dict[str, Any]:
        asked: dict[int, dict[str, Any]] = {}
        try:
            self._hear_all(asked, own_mark, deadline)
            answers = answer([asked[rank]["own"] for rank in range(self._store.size)])
        except Exception as error:
            # The others wait for an answer: they must hear of it.
            self._answer(own_mark, asked, [failed(error)] * self._store.size)
            self._serve(own_mark, asked, time.monotonic() + _FAREWELL_SECONDS)
            raise
        self._answer(own_mark, asked, answers)
        self._thread = threading.Thread(target=self._serve_all, args=(own_mark, asked), daemon=True)
        self._thread.start()
        return answers[0]

    def _hear_all(self, asked: dict[int, dict[str, Any]], own_mark: str, deadline: float) -> None:
        ranks = range(self._store.size)
        while len(asked) < len(ranks):
            for rank in ranks:
                text = None if rank in asked else self._store.get(f"ask-{rank}")
                if text is not None and (rank != 0 or decode(text)["mark"] == own_mark):
                    asked[rank] = decode(text)
            missing = ", ".join(str(rank) for rank in ranks if rank not in asked)
            if missing and time.monotonic() > deadline:
                raise LaunchError(
                    f"missing are ranks {missing}: they have not come to bps.init(){self._silent(asked)}{self._where}"
                )
            if missing:
                self._pause()

    def _silent(self, asked: dict[int, dict[str, Any]]) -> str:
        """The nodes from which no rank has come, for people; empty: there is none, or they are not known."""
        come = {each.get("node") for each in asked.values()}
        nodes = [node for node in self._nodes() if node not in come]
        if not nodes:
            return ""
        more = f" and {len(nodes) - _NAMED_NODES} more" if len(nodes) > _NAMED_NODES else ""
        return f"; none has come from {', '.join(nodes[:_NAMED_NODES])}{more}"

    def _answer(self, own_mark: str, asked: dict[int, dict[str, Any]], answers: list[dict[str, Any]]) -> None:
        for rank, each in asked.items():
            each["answer"] = answers[rank]
            if rank != 0:
                self._answer_one(own_mark, rank, each)

    def _answer_one(self, own_mark: str, rank: int, asked: dict[str, Any]) -> None:
        answer = {"mark": asked["mark"], "by": own_mark, "answer": asked["answer"]}
        self._store.set(f"answer-{rank}", encode(answer))

    def _serve_all(self, own_mark: str, asked: dict[int, dict[str, Any]]) -> None:
        # An exception: the store is gone, and the job with it: the session tells why.
        with contextlib.suppress(Exception):
            if self._serve(own_mark, asked, None):
                self._leave()

    def _serve(self, own_mark: str, asked: dict[int, dict[str, Any]], deadline: float | None) -> bool:
        """Until all have taken their answer. What was seen first may have been left by an earlier attempt: a process
        that asks anew is answered, too."""
        waiting = {rank for rank in asked if rank != 0}
        while waiting and not self._over.is_set() and (deadline is None or time.monotonic() < deadline):
            for rank in sorted(waiting):
                if self._store.get(f"taken-{rank}") == own_mark:
                    waiting.remove(rank)
                    continue
                text = self._store.get(f"ask-{rank}")
                mark = asked[rank]["mark"] if text is None else decode(text)["mark"]
                if mark != asked[rank]["mark"]:
                    asked[rank]["mark"] = mark
                    self._answer_one(own_mark, rank, asked[rank])
            if waiting:
                self._over.wait(_POLL_SECONDS)
        return not waiting


def failed(error: Exception) -> dict[str, str]:
    """The answer of a rank 0 that cannot give one."""
    return {"failed": str(error), "host": socket.gethostname()}


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer; LaunchError if rank 0 could not give one."""
    if "failed" in answer:
        raise LaunchError(f"rank 0 (host {answer['host']}) has failed: {answer['failed']}")
    return answer
