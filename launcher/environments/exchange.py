"""How the processes of a job that another launcher has started exchange what they need to meet."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from ..failure import LaunchError

Answer = Callable[["list[dict[str, Any]]"], "list[dict[str, Any]]"]
_POLL_SECONDS = 0.05


class Exchange(Protocol):
    """Every process gives something; rank 0 answers each."""

    def meet(self, own: dict[str, Any], answer: Answer, deadline: float) -> dict[str, Any]:
        """What rank 0 has answered to us.

        Args:
            own: what we give
            answer: called in rank 0 alone, with what all have given, by rank; what it returns is for each
            deadline: of time.monotonic()
        """

    def close(self) -> None:
        """All processes have met."""


def encode(value: dict[str, Any]) -> str:
    """As one word."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def decode(text: str | bytes) -> dict[str, Any]:
    """What was encoded."""
    return json.loads(base64.urlsafe_b64decode(text))


class Fenced(Protocol):
    """A store of a launcher: what was put is seen by all after the next fence, which all must reach."""

    rank: int
    size: int

    def put(self, key: str, value: str) -> None:
        """Offers a value under a key of our own."""

    def fence(self, deadline: float) -> None:
        """Waits for all."""

    def get(self, key: str, rank: int) -> str:
        """What `rank` has put."""

    def close(self) -> None:
        """Leaves the store."""


class FencedExchange:
    """An exchange by a store with fences: two of them."""

    def __init__(self, store: Fenced) -> None:
        self._store = store

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
                answers = [{"failed": str(error)}] * store.size
            for rank, each in enumerate(answers):
                store.put(f"byteps-answer-{rank}", encode(each))
        store.fence(deadline)
        if failure is not None:
            raise failure
        return checked(decode(store.get(f"byteps-answer-{store.rank}", 0)))

    def close(self) -> None:
        """See Exchange."""
        self._store.close()


class Lasting(Protocol):
    """A store whose entries outlive the processes, also those of an earlier attempt."""

    rank: int
    size: int

    def set(self, key: str, value: str) -> None:
        """Replaces the value of a key."""

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""

    def close(self) -> None:
        """Leaves the store."""


class LastingExchange:
    """An exchange by a store that keeps what earlier attempts have left.

    Each process asks under its rank, with a mark of its own; rank 0 answers with the mark that it saw. So an answer
    that an earlier attempt has left is never taken, and a rank that asks late, or again, is answered while rank 0 is
    there.
    """

    def __init__(self, store: Lasting) -> None:
        self._store = store
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def meet(self, own: dict[str, Any], answer: Answer, deadline: float) -> dict[str, Any]:
        """See Exchange."""
        mark = uuid.uuid4().hex
        store = self._store
        store.set(f"ask-{store.rank}", encode({"mark": mark, "own": own}))
        if store.rank == 0:
            return self._answer_all(mark, answer, deadline)
        while True:
            text = store.get(f"answer-{store.rank}")
            if text is not None:
                found = decode(text)
                if found["mark"] == mark:
                    return checked(found["answer"])
            if time.monotonic() > deadline:
                raise LaunchError("rank 0 has not answered: it has not come to bps.init(), or not with the same store")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """See Exchange."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._store.close()

    def _answer_all(self, own_mark: str, answer: Answer, deadline: float) -> dict[str, Any]:
        asked: list[dict[str, Any] | None] = [None] * self._store.size
        while None in asked:
            for rank, known in enumerate(asked):
                text = None if known is not None else self._store.get(f"ask-{rank}")
                if text is not None and (rank != 0 or decode(text)["mark"] == own_mark):
                    asked[rank] = decode(text)
            if None in asked and time.monotonic() > deadline:
                missing = ", ".join(str(rank) for rank, known in enumerate(asked) if known is None)
                raise LaunchError(f"missing are ranks {missing}: they have not come to bps.init()")
            if None in asked:
                time.sleep(_POLL_SECONDS)
        answers = answer([each["own"] for each in asked if each is not None])
        marks = [str(each["mark"]) for each in asked if each is not None]
        for rank in range(1, self._store.size):
            self._store.set(f"answer-{rank}", encode({"mark": marks[rank], "answer": answers[rank]}))
        self._thread = threading.Thread(target=self._answer_late, args=(marks, answers), daemon=True)
        self._thread.start()
        return answers[0]

    def _answer_late(self, marks: list[str], answers: list[dict[str, Any]]) -> None:
        """What was seen first may have been left by an earlier attempt: a process that asks anew is answered, too."""
        while not self._over.wait(_POLL_SECONDS):
            try:
                for rank in range(1, self._store.size):
                    text = self._store.get(f"ask-{rank}")
                    mark = marks[rank] if text is None else str(decode(text)["mark"])
                    if mark != marks[rank]:
                        marks[rank] = mark
                        self._store.set(f"answer-{rank}", encode({"mark": mark, "answer": answers[rank]}))
            except Exception:  # The store is gone, and the job with it: the session tells why.
                return


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer; LaunchError if rank 0 could not give one."""
    if "failed" in answer:
        raise LaunchError(f"rank 0 has failed: {answer['failed']}")
    return answer
