"""Collectives of arrays without a framework, beside push_pull and broadcast.

    rows = byteps.allgather(rows)                                # all rows, by rank: a new NumPy array
    mine, counts = byteps.alltoall(rows, [3, 1])                 # rows for each rank; rows from each
    part = byteps.reducescatter(gradient, op=byteps.Sum, process_set=evens)

Each has a twin that ends with _async and returns at once: `operation.wait()`, or `await operation`. Rows are what the
first extent counts. A result is a NumPy array in the library's memory: nothing is copied. docs/collectives.md says what
each operation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from byteps import _native
from byteps.arguments import check_reduction, check_splits, priority_number, root, tensor_name, whole_number
from byteps.arrays import _name, give_back, name_of, numpy_dtype
from byteps.event_loop import Expectation
from byteps.operation import Operation
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import ReduceOp, choose_op
from byteps.session import Session, current_session


class CollectiveOperation(Operation):
    """A collective that goes on: wait for it, ask it, await it, or drop it. Its array is held until it has ended,
    whatever becomes of this object; until then it must not be changed."""

    __slots__ = ("_results",)

    def __init__(self, request: _native.Request, results: Callable[[_native.Request], Any], ended: Any = None) -> None:
        super().__init__(request, None, ended)
        self._results = results

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation has ended, at most `timeout` seconds, and returns what it has brought.

        Raises:
            BytePSError: the operation's error; or DeadlineExceededError when the wait ended first: it then goes on.
        """
        self._request.wait(timeout)
        return self._results(self._request)


class Asked:
    """A collective that has not begun: its arguments, the memory that they name, and what becomes of its result."""

    __slots__ = ("_counted", "_dtype", "_number", "array", "native")

    def __init__(
        self,
        session: Session,
        kind: int,
        label: str,
        array: Any,
        *,
        name: str | None = None,
        process_set: ProcessSet | None = global_process_set,
        priority: int = 0,
        timeout: float | None = None,
        splits: Iterable[int] | None = None,
        counted: bool = False,
        **options: Any,
    ) -> None:
        self.array = _native.Array(array, writable=False)
        self._dtype = numpy_dtype(array, self.array)
        self._counted = counted
        ranks = global_process_set if process_set is None else check_process_set(process_set, session)
        pairwise = kind in (_native.SEND, _native.RECEIVE)
        if splits is not None:
            options["splits"] = [whole_number("a split", split) for split in splits]
            if not options["splits"]:
                raise ValueError("splits is empty; it has one entry for each rank")
        common: dict[str, Any] = {
            "dtype": self.array.dtype,
            "shape": self.array.shape,
            "input": self.array.address,
            "process_set": ranks.native(session),
            "priority": priority_number(priority),
            "timeout": timeout,
        }
        # What is numbered, and by what; None: it has a name.
        self._number: tuple[Session, str, str] | None = None
        if name is None and not pairwise:
            members = len(ranks.ranks or ()) if ranks.key() else session.native.info()["size"]
            self._check(session, kind, ranks, members, options)
            _native.Collective(kind, label, **common, **options)  # refuses arguments of wrong types
            name = _name(session, label + ranks.key(), None)
            self._number = session, label + ranks.key(), name
        elif name is not None and not pairwise:
            name = tensor_name(name)
        self.native = _native.Collective(kind, None if pairwise else name, **common, **options)

    def _check(self, session: Session, kind: int, ranks: ProcessSet, members: int, options: dict[str, Any]) -> None:
        """Refuses what the library would refuse when the operation has its number. Raises TypeError, ValueError."""
        rows = self.array.shape[0] if self.array.shape else 1
        if "op" in options:
            check_reduction(options["op"], name_of(self.array))
        if "root" in options:
            root(session, options["root"], ranks)
        if kind == _native.ALL_TO_ALL or "splits" in options:
            check_splits(options.get("splits"), rows, members)

    def give_back(self) -> None:
        """Its number, if it has one, is that of the next: it has not begun."""
        if self._number is not None:
            give_back(*self._number)

    def result(self, request: _native.Request, index: int = 0) -> Any:
        """What the operation has brought, when it has ended well."""
        import numpy

        found = request.result(index)
        if not found.shape and len(found) == 0:
            return None  # this rank gets nothing
        # An array without elements may have an extent of 0 anywhere.
        rows = numpy.frombuffer(found, self._dtype, len(found) // numpy.dtype(self._dtype).itemsize)
        rows = rows.reshape(found.shape)
        return (rows, list(found.splits)) if self._counted else rows


def start(session: Session, asked: Asked) -> CollectiveOperation:
    """Starts a collective."""
    expectation = Expectation()
    try:
        request = session.native.collective(asked.native, asked.array, expectation.completions, expectation.token)
    except BaseException as error:
        expectation.drop()
        if isinstance(error, Exception):
            asked.give_back()
        raise
    return CollectiveOperation(request, asked.result, expectation.future)


def _reduction(op: ReduceOp | int | None, average: bool, scale: tuple[float, float] | None) -> dict[str, Any]:
    return {"op": choose_op(op, average), "scale": scale}


def ask_allgather(session: Session, array: Any, **options: Any) -> Asked:
    """byteps.allgather, not yet begun."""
    return Asked(session, _native.ALL_GATHER, "allgather", array, **options)


def ask_alltoall(session: Session, array: Any, splits: Iterable[int] | None = None, **options: Any) -> Asked:
    """byteps.alltoall, not yet begun."""
    counted = splits is not None
    return Asked(session, _native.ALL_TO_ALL, "alltoall", array, splits=splits, counted=counted, **options)


def ask_reducescatter(
    session: Session,
    array: Any,
    splits: Iterable[int] | None = None,
    *,
    average: bool = True,
    op: ReduceOp | int | None = None,
    scale: tuple[float, float] | None = None,
    **options: Any,
) -> Asked:
    """byteps.reducescatter, not yet begun."""
    reduction = _reduction(op, average, scale)
    return Asked(session, _native.REDUCE_SCATTER, "reducescatter", array, splits=splits, **reduction, **options)


def ask_allreduce(
    session: Session,
    array: Any,
    *,
    average: bool = True,
    op: ReduceOp | int | None = None,
    scale: tuple[float, float] | None = None,
    **options: Any,
) -> Asked:
    """byteps.allreduce, not yet begun."""
    reduction = {"op": choose_op(op, average, adasum=True), "scale": scale}
    return Asked(session, _native.ALL_REDUCE, "allreduce", array, **reduction, **options)


def ask_reduce(
    session: Session,
    array: Any,
    root_rank: int = 0,
    *,
    average: bool = True,
    op: ReduceOp | int | None = None,
    scale: tuple[float, float] | None = None,
    **options: Any,
) -> Asked:
    """byteps.reduce, not yet begun."""
    reduction = _reduction(op, average, scale)
    return Asked(session, _native.REDUCE, "reduce", array, root=root(session, root_rank), **reduction, **options)


def ask_gather(session: Session, array: Any, root_rank: int = 0, **options: Any) -> Asked:
    """byteps.gather, not yet begun."""
    return Asked(session, _native.GATHER, "gather", array, root=root(session, root_rank), **options)


def ask_scatter(
    session: Session, array: Any, root_rank: int = 0, splits: Iterable[int] | None = None, **options: Any
) -> Asked:
    """byteps.scatter, not yet begun."""
    return Asked(session, _native.SCATTER, "scatter", array, root=root(session, root_rank), splits=splits, **options)


def ask_send(session: Session, array: Any, peer: int, tag: int = 0, **options: Any) -> Asked:
    """byteps.send, not yet begun."""
    return Asked(session, _native.SEND, "send", array, peer=whole_number("peer", peer), tag=tag, **options)


def ask_receive(session: Session, like: Any, peer: int, tag: int = 0, **options: Any) -> Asked:
    """byteps.receive, not yet begun."""
    return Asked(session, _native.RECEIVE, "receive", like, peer=whole_number("peer", peer), tag=tag, **options)


ASKED: dict[str, Callable[..., Asked]] = {
    "allgather": ask_allgather,
    "allreduce": ask_allreduce,
    "alltoall": ask_alltoall,
    "gather": ask_gather,
    "receive": ask_receive,
    "reduce": ask_reduce,
    "reducescatter": ask_reducescatter,
    "scatter": ask_scatter,
    "send": ask_send,
}


class Group:
    """Several collectives that are started as one, all or nothing::

        group = byteps.Group()
        group.allreduce(loss)
        group.allgather(rows, name="rows")
        loss, rows = group.start().wait()           # or: await group.start()

    Its methods take what the functions of the same names take. If one operation fails, so does the whole.

    Args:
        session: whose operations they are; None: that of init(). `open_session().group()` gives one of its own.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = current_session() if session is None else session
        self._members: list[Asked] = []

    def _add(self, kind: str, *arguments: Any, **options: Any) -> None:
        self._members.append(ASKED[kind](self._session, *arguments, **options))

    def allgather(self, array: Any, **options: Any) -> None:
        """Adds an allgather."""
        self._add("allgather", array, **options)

    def allreduce(self, array: Any, **options: Any) -> None:
        """Adds an allreduce."""
        self._add("allreduce", array, **options)

    def alltoall(self, array: Any, splits: Iterable[int] | None = None, **options: Any) -> None:
        """Adds an alltoall."""
        self._add("alltoall", array, splits, **options)

    def reducescatter(self, array: Any, splits: Iterable[int] | None = None, **options: Any) -> None:
        """Adds a reducescatter."""
        self._add("reducescatter", array, splits, **options)

    def reduce(self, array: Any, root_rank: int = 0, **options: Any) -> None:
        """Adds a reduce."""
        self._add("reduce", array, root_rank, **options)

    def gather(self, array: Any, root_rank: int = 0, **options: Any) -> None:
        """Adds a gather."""
        self._add("gather", array, root_rank, **options)

    def scatter(self, array: Any, root_rank: int = 0, splits: Iterable[int] | None = None, **options: Any) -> None:
        """Adds a scatter."""
        self._add("scatter", array, root_rank, splits, **options)

    def send(self, array: Any, peer: int, tag: int = 0, **options: Any) -> None:
        """Adds a send."""
        self._add("send", array, peer, tag, **options)

    def receive(self, like: Any, peer: int, tag: int = 0, **options: Any) -> None:
        """Adds a receive."""
        self._add("receive", like, peer, tag, **options)

    def start(self) -> CollectiveOperation:
        """Starts all; its wait() returns their results in a list, in order."""
        members = list(self._members)
        request = self._session.native.group([one.native for one in members], [one.array for one in members])
        return CollectiveOperation(
            request, lambda ended: [one.result(ended, index) for index, one in enumerate(members)]
        )


def allgather_async(array: Any, **options: Any) -> CollectiveOperation:
    """As allgather, but returns at once."""
    session = current_session()
    return start(session, ask_allgather(session, array, **options))


def allgather(array: Any, **options: Any) -> Any:
    """All arrays, one behind the other by rank, to all. First extents may differ.

    Args:
        array: what this worker contributes.
        **options: `name` (the same on all ranks; None: numbered, which needs the same order of unnamed calls on all
            ranks), `process_set`, `priority` (larger is sooner), `timeout` (seconds, of the whole operation).

    Raises:
        TypeError, ValueError, BytePSError: as byteps.push_pull; ValueError also where this rank is not in the set.
    """
    return allgather_async(array, **options).wait()


def allreduce_async(array: Any, **options: Any) -> CollectiveOperation:
    """As allreduce, but returns at once."""
    session = current_session()
    return start(session, ask_allreduce(session, array, **options))


def allreduce(array: Any, **options: Any) -> Any:
    """The reduction of all arrays: byteps.push_pull, also over some of the ranks (`process_set`), and with factors
    before and after it (`scale=(before, after)`). `average`, `op`, and the options of allgather."""
    return allreduce_async(array, **options).wait()


def alltoall_async(array: Any, splits: Iterable[int] | None = None, **options: Any) -> CollectiveOperation:
    """As alltoall, but returns at once."""
    session = current_session()
    return start(session, ask_alltoall(session, array, splits, **options))


def alltoall(array: Any, splits: Iterable[int] | None = None, **options: Any) -> Any:
    """From each to each rank its rows: `splits`, else equal ones. With `splits` it returns the rows and how many came
    from each rank. The options of allgather."""
    return alltoall_async(array, splits, **options).wait()


def reducescatter_async(array: Any, splits: Iterable[int] | None = None, **options: Any) -> CollectiveOperation:
    """As reducescatter, but returns at once."""
    session = current_session()
    return start(session, ask_reducescatter(session, array, splits, **options))


def reducescatter(array: Any, splits: Iterable[int] | None = None, **options: Any) -> Any:
    """Of the reduction of all arrays to each rank its rows: `splits`, else as even as possible. `average`, `op`,
    `scale`, and the options of allgather."""
    return reducescatter_async(array, splits, **options).wait()


def reduce_async(array: Any, root_rank: int = 0, **options: Any) -> CollectiveOperation:
    """As reduce, but returns at once."""
    session = current_session()
    return start(session, ask_reduce(session, array, root_rank, **options))


def reduce(array: Any, root_rank: int = 0, **options: Any) -> Any:
    """The reduction of all arrays, to the root; the others get None. `average`, `op`, `scale`, and the options of
    allgather."""
    return reduce_async(array, root_rank, **options).wait()


def gather_async(array: Any, root_rank: int = 0, **options: Any) -> CollectiveOperation:
    """As gather, but returns at once."""
    session = current_session()
    return start(session, ask_gather(session, array, root_rank, **options))


def gather(array: Any, root_rank: int = 0, **options: Any) -> Any:
    """All arrays, one behind the other by rank, to the root; the others get None. The options of
    allgather."""
    return gather_async(array, root_rank, **options).wait()


def scatter_async(
    array: Any, root_rank: int = 0, splits: Iterable[int] | None = None, **options: Any
) -> CollectiveOperation:
    """As scatter, but returns at once."""
    session = current_session()
    return start(session, ask_scatter(session, array, root_rank, splits, **options))


def scatter(array: Any, root_rank: int = 0, splits: Iterable[int] | None = None, **options: Any) -> Any:
    """From the root's array to each rank its rows: the root's `splits`, else as even as possible. Elsewhere the array
    says the dtype and the other extents, and may have no rows. The options of allgather."""
    return scatter_async(array, root_rank, splits, **options).wait()


def send_async(array: Any, peer: int, tag: int = 0, **options: Any) -> CollectiveOperation:
    """As send, but returns at once."""
    session = current_session()
    return start(session, ask_send(session, array, peer, tag, **options))


def send(array: Any, peer: int, tag: int = 0, **options: Any) -> None:
    """Sends the array to a rank that receives with the same tag; messages of a tag arrive in the order in which they
    were sent. `process_set`, `priority`, `timeout`."""
    send_async(array, peer, tag, **options).wait()


def receive_async(like: Any, peer: int, tag: int = 0, **options: Any) -> CollectiveOperation:
    """As receive, but returns at once."""
    session = current_session()
    return start(session, ask_receive(session, like, peer, tag, **options))


def receive(like: Any, peer: int, tag: int = 0, **options: Any) -> Any:
    """What a rank sends with this tag. `like`: an array of its dtype and of its extents but the first. `process_set`,
    `priority`, `timeout`."""
    return receive_async(like, peer, tag, **options).wait()
