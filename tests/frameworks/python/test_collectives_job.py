"""Collectives in real processes: each kind against NumPy, random programs, and what happens when ranks disagree."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import DTYPES, call, even_rows, native, operation, reduced, start, taken

RunWorkers = Callable[..., Any]

KINDS = (
    _native.ALL_REDUCE,
    _native.BROADCAST,
    _native.ALL_GATHER,
    _native.REDUCE_SCATTER,
    _native.ALL_TO_ALL,
    _native.REDUCE,
    _native.GATHER,
    _native.SCATTER,
)
OWN_ROWS = (_native.ALL_GATHER, _native.GATHER, _native.ALL_TO_ALL, _native.SCATTER)
REDUCING = (_native.ALL_REDUCE, _native.REDUCE_SCATTER, _native.REDUCE)


def _ops(dtype: np.dtype) -> list[int]:
    ops = [_native.SUM, _native.PRODUCT]
    if dtype.kind != "b":
        ops.append(_native.AVERAGE)
    if dtype.kind != "c":
        ops += [_native.MIN, _native.MAX]
    if dtype.kind in "iub":
        ops += [_native.BIT_AND, _native.BIT_OR, _native.BIT_XOR]
    return ops


def _draw(source: random.Random, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(source.randrange(2**32))
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    values = generator.standard_normal(shape)
    return (values + 1j * generator.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else values.astype(dtype)


def _draw_shapes(source: random.Random, kind: int, ranks: int, most: int) -> list[tuple[int, ...]]:
    """The shape on each rank."""
    trailing = tuple(source.randrange(1, 5) for _ in range(source.randrange(3)))

    def rows() -> int:
        return 0 if source.random() < 0.15 else source.randrange(1, 20 if source.random() < 0.7 else most)

    common = rows()
    shapes = [((rows() if kind in OWN_ROWS else common), *trailing) for _ in range(ranks)]
    if kind == _native.ALL_TO_ALL:
        shapes = [(shape[0] * ranks, *trailing) for shape in shapes]
    return shapes


def _cut(source: random.Random, rows: int, ranks: int) -> list[int]:
    borders = sorted(source.randrange(rows + 1) for _ in range(ranks - 1))
    return [last - first for first, last in zip([0, *borders], [*borders, rows], strict=True)]


def _expected(kind: int, op: int, root: int, place: int, inputs: list[np.ndarray], splits: list[list[int]]) -> Any:
    """What the rank at `place` gets; None: nothing."""

    def part(source: int) -> np.ndarray:
        first = sum(splits[source][:place])
        return inputs[source][first : first + splits[source][place]]

    if kind in (_native.REDUCE, _native.GATHER) and place != root:
        return None
    if kind in REDUCING:
        whole = reduced(op, inputs)
        first = sum(splits[place][:place])
        return whole[first : first + splits[place][place]] if kind == _native.REDUCE_SCATTER else whole
    if kind == _native.BROADCAST:
        return inputs[root]
    if kind == _native.SCATTER:
        return part(root)
    if kind == _native.ALL_TO_ALL:
        return np.concatenate([part(source) for source in range(len(inputs))])
    return np.concatenate(inputs)


class _Part:
    """One operation of a program, as this rank submits it, and what it must bring."""

    def __init__(self, source: random.Random, name: str, members: list[int], everybody: bool, most: int) -> None:
        self.name = name
        self.kind = source.choice(KINDS)
        self.dtype = np.dtype(source.choice(sorted(DTYPES)))
        self.op = source.choice(_ops(self.dtype))
        root = source.randrange(len(members))
        shapes = _draw_shapes(source, self.kind, len(members), most)
        inputs = [_draw(source, self.dtype, shape) for shape in shapes]
        splits = [even_rows(shape[0], len(members)) for shape in shapes]
        given = self.kind in (_native.ALL_TO_ALL, _native.SCATTER, _native.REDUCE_SCATTER) and source.random() < 0.5
        if given:
            splits = [_cut(source, shape[0], len(members)) for shape in shapes]
            if self.kind == _native.REDUCE_SCATTER:
                splits = [splits[0]] * len(members)
        if byteps.rank() not in members:
            return
        place = members.index(byteps.rank())
        self.array = inputs[place].copy()
        self.expected = _expected(self.kind, self.op, root, place, inputs, splits)
        self._options: dict[str, Any] = {"op": self.op, "root": members[root], "splits": splits[place] if given else []}
        self._members = None if everybody else members

    def operation(self) -> _native.Collective:
        process_set = None if self._members is None else native().process_set(self._members)
        return operation(self.kind, self.name, self.array, process_set=process_set, **self._options)

    def check(self, request: _native.Request, index: int = 0) -> None:
        result = taken(request, self.dtype, index)
        if self.expected is None:
            assert result.size == 0, self.name
            return
        assert result.shape == self.expected.shape, (self.name, self.kind)
        assert result.tobytes() == self.expected.tobytes(), (self.name, self.kind, self.op, self.dtype)


def _begin(parts: list[_Part]) -> Callable[[], None]:
    """Submits the parts, as a group where there are several; the answer waits and looks at what has come."""
    buffers = [part.array for part in parts]
    if len(parts) == 1:
        request = native().collective(parts[0].operation(), buffers=buffers)
    else:
        request = native().group([part.operation() for part in parts], buffers=buffers)

    def finish() -> None:
        for index, part in enumerate(parts):
            part.check(request, index)

    return finish


def _random_programs(first_seed: int = 1, programs: int = 12, most: int = 5000) -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    for seed in range(first_seed, first_seed + programs):
        print(f"seed {seed}", flush=True)
        source = random.Random(seed)
        work: list[list[_Part]] = []
        for index in range(source.randrange(1, 15)):
            members = [each for each in range(size) if source.random() < 0.7] or [source.randrange(size)]
            everybody = source.random() < 0.5
            members = list(range(size)) if everybody else members
            count = source.randrange(2, 5) if source.random() < 0.25 else 1
            parts = [_Part(source, f"{seed}.{index}.{each}", members, everybody, most) for each in range(count)]
            if rank in members:
                work.append(parts)
        # An order of this rank's own.
        random.Random(seed * 100 + rank).shuffle(work)
        for end in [_begin(parts) for parts in work]:
            end()
    byteps.shutdown()


@pytest.mark.parametrize(("workers", "servers"), [(1, 0), (2, 0), (3, 1), (4, 0), (7, 0)])
def test_random_programs_bring_what_numpy_says(run_workers: RunWorkers, workers: int, servers: int) -> None:
    run_workers(_random_programs, workers=workers, servers=servers)


def _over_the_network() -> None:
    _random_programs(first_seed=100, programs=6)


@pytest.mark.parametrize("path", ["servers", "peers"])
def test_the_same_over_tcp(run_workers: RunWorkers, path: str) -> None:
    run_workers(
        _over_the_network, workers=3, servers=1, BYTEPS_SHM="0", BYTEPS_TRANSPORT="tcp", BYTEPS_COLLECTIVE_PATH=path
    )


def _messages() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    peer = (rank + 1) % size
    source = (rank - 1) % size
    for count in (0, 1, 1000, 1_000_000):
        payloads = [np.full(count, 10 * rank + tag, dtype=np.float32) for tag in range(3)]
        sends = [start(_native.SEND, None, payload, peer=peer, tag=tag) for tag, payload in enumerate(payloads)]
        # In another order than they were sent, and twice under one tag.
        for tag in (2, 0, 1):
            room = np.empty(count, dtype=np.float32)
            call(_native.RECEIVE, None, room, peer=source, tag=tag, output=room)
            assert (room == 10 * source + tag).all()
        for request in sends:
            request.wait()
    byteps.shutdown()


def _both_ways() -> list[str]:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    texts = []
    ones = np.ones(10, dtype=np.float32)
    for turn in range(3):
        with pytest.raises(byteps.FailedPreconditionError, match="the ranks do not agree") as caught:
            if rank == turn:
                byteps.push_pull(ones, name="one name")
            else:
                call(_native.ALL_GATHER, "one name", ones)
        texts.append(str(caught.value))
        # It goes on, both ways.
        assert call(_native.ALL_GATHER, "one name", ones).shape == (10 * size,)
        assert (byteps.push_pull(ones, name="one name", average=False) == size).all()
        byteps.barrier()
    if rank == 0:
        request = start(_native.ALL_GATHER, "one name", ones)
        with pytest.raises(byteps.AlreadyExistsError):
            byteps.push_pull(ones, name="one name")
        byteps.barrier()
    else:
        byteps.barrier()
        request = start(_native.ALL_GATHER, "one name", ones)
    request.wait()
    byteps.shutdown()
    return texts


@pytest.mark.parametrize("servers", [0, 1])
def test_one_name_both_ways_is_an_error(run_workers: RunWorkers, servers: int) -> None:
    results = run_workers(_both_ways, workers=3, servers=servers, BYTEPS_OP_TIMEOUT="60").results
    for texts in results:
        for turn, text in enumerate(texts):
            assert f'rank {turn} asks for push_pull (average) of "one name" (float32, 10)' in text
            assert "asks for all_gather of float32, * from worker to worker" in text


def test_messages_meet_by_tag(run_workers: RunWorkers) -> None:
    run_workers(_messages, workers=3)


def _groups() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    arrays = [np.full(count, rank + 1, dtype=np.float32) for count in (1, 1000, 100_000)]
    operations = [operation(_native.ALL_REDUCE, f"g{index}", array, output=array) for index, array in enumerate(arrays)]
    operations.append(operation(_native.ALL_GATHER, "rows", arrays[0]))
    request = native().group(operations, buffers=arrays)
    rows = taken(request, np.dtype(np.float32), index=3)
    for array in arrays:
        assert (array == size * (size + 1) / 2).all()
    assert rows.shape == (size,)

    # One that disagrees takes the others along.
    wrong = np.ones(3 if rank == 0 else 4, dtype=np.float32)
    good = np.ones(5, dtype=np.float32)
    request = native().group(
        [operation(_native.ALL_GATHER, "good", good), operation(_native.REDUCE, "wrong", wrong)], buffers=(wrong, good)
    )
    with pytest.raises(byteps.FailedPreconditionError, match="do not agree"):
        request.wait()
    assert call(_native.ALL_GATHER, "good", good).shape == (5 * size,)
    byteps.shutdown()


def test_groups_are_all_or_nothing(run_workers: RunWorkers) -> None:
    run_workers(_groups, workers=3)


def _disagreements() -> list[str]:
    byteps.init()
    rank = byteps.rank()
    texts = []
    cases: list[tuple[int, np.ndarray, dict[str, Any]]] = [
        (_native.ALL_GATHER, np.ones(3, dtype=np.float32 if rank else np.int32), {}),
        (_native.REDUCE_SCATTER, np.ones((4, 2 if rank else 3), dtype=np.float32), {}),
        (_native.REDUCE, np.ones(4, dtype=np.float32), {"op": _native.MAX if rank else _native.SUM}),
        (_native.GATHER, np.ones(4, dtype=np.float32), {"root": 0 if rank else 1}),
        (_native.REDUCE_SCATTER, np.ones(4, dtype=np.float32), {"splits": [2, 1, 1] if rank else [1, 2, 1]}),
        (_native.ALL_TO_ALL if rank else _native.ALL_GATHER, np.ones(3, dtype=np.float32), {}),
    ]
    for kind, array, options in cases:
        with pytest.raises(byteps.FailedPreconditionError) as caught:
            call(kind, "odd", array, **options)
        texts.append(str(caught.value).split("the ranks do not agree: ")[1])
    assert call(_native.ALL_GATHER, "odd", np.ones(2, dtype=np.float32)).shape == (6,)
    byteps.shutdown()
    return texts


def test_who_disagrees_is_named_on_every_rank(run_workers: RunWorkers) -> None:
    results = run_workers(_disagreements, workers=3).results
    assert results[0] == results[1] == results[2]
    assert results[0][0] == ("rank 0 asks for all_gather of int32, *; ranks 1, 2 ask for all_gather of float32, *")
    assert "with root 1" in results[0][3]
    assert "splits 2, 1, 1" in results[0][4]


def _wrong_input() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    array = np.ones(6, dtype=np.float32)
    cases: list[tuple[str, int, dict[str, Any]]] = [
        ("add up", _native.ALL_TO_ALL, {"splits": [1, 2]}),
        ("a split is -1", _native.ALL_TO_ALL, {"splits": [7, -1]}),
        ("3 splits for 2 ranks", _native.ALL_TO_ALL, {"splits": [1, 2, 3]}),
        ("root 5 is not in", _native.REDUCE, {"root": 5}),
        ("takes no splits", _native.ALL_GATHER, {"splits": [3, 3]}),
        ("has no meaning", _native.REDUCE, {"op": _native.BIT_AND}),
        ("overlap", _native.ALL_GATHER, {"output": array}),
        ("is this rank", _native.SEND, {"peer": rank}),
    ]
    for text, kind, options in cases:
        with pytest.raises(byteps.InvalidArgumentError, match=text):
            start(kind, "wrong", array, **options)
    with pytest.raises(byteps.InvalidArgumentError, match="no rank of this job"):
        native().process_set([0, size])
    other = native().process_set([1 - rank])
    with pytest.raises(byteps.InvalidArgumentError, match="this rank"):
        start(_native.ALL_GATHER, "wrong", array, process_set=other)
    # Too small for what comes, on one rank: an error on both.
    room = np.empty(12 if rank == 0 else 11, dtype=np.float32)
    with pytest.raises(byteps.InvalidArgumentError, match="rank 1 has an output of 44 bytes; it gets 48 bytes"):
        call(_native.ALL_GATHER, "small", array, output=room)
    # A set that is in use stays.
    both = native().process_set([0, 1])
    if rank == 0:
        request = start(_native.BARRIER, "late", array, process_set=both)
        with pytest.raises(byteps.FailedPreconditionError, match="have not ended"):
            both.remove()
        byteps.barrier()
    else:
        byteps.barrier()
        request = start(_native.BARRIER, "late", array, process_set=both)
    request.wait()
    both.remove()
    byteps.shutdown()


def test_wrong_input_is_an_error(run_workers: RunWorkers) -> None:
    run_workers(_wrong_input, workers=2)


def _missing() -> str | None:
    byteps.init()
    text = None
    if byteps.rank() != 2:
        with pytest.raises(byteps.DeadlineExceededError) as caught:
            call(_native.ALL_GATHER, "lonely", np.ones(3, dtype=np.float32), timeout=1.0)
        text = str(caught.value)
    byteps.barrier()
    assert call(_native.ALL_GATHER, "after", np.ones(1, dtype=np.float32)).shape == (3,)
    byteps.shutdown()
    return text


def test_a_deadline_names_who_is_missing(run_workers: RunWorkers) -> None:
    results = run_workers(_missing, workers=3).results
    assert "not submitted by rank 2" in results[0]
    assert "not submitted by rank 2" in results[1]


def _adasum_of(vectors: list[np.ndarray]) -> np.ndarray:
    """The formula, in float64: neighbours first, what is left over waits."""
    level = [vector.astype(np.float64) for vector in vectors]
    while len(level) > 1:
        pairs = []
        for a, b in zip(level[::2], level[1::2], strict=False):
            dot, of_a, of_b = a @ b, a @ a, b @ b
            pairs.append((1 - dot / (2 * of_a) if of_a else 1) * a + (1 - dot / (2 * of_b) if of_b else 1) * b)
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def _adasum() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    for count in (1, 7, 1000, 300_000):
        for dtype, tolerance in (("float16", 1e-3), ("float32", 1e-6), ("float64", 1e-12)):
            inputs = [np.random.default_rng([count, each]).standard_normal(count).astype(dtype) for each in range(size)]
            expected = _adasum_of(inputs)
            result = call(_native.ALL_REDUCE, f"a.{count}.{dtype}", inputs[rank], op=_native.ADASUM)
            np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    equal = np.full(100, 3, dtype=np.float32)
    assert (call(_native.ALL_REDUCE, "equal", equal, op=_native.ADASUM) == 3).all()
    apart = np.zeros(size, dtype=np.float32)
    apart[rank] = rank + 1
    assert (call(_native.ALL_REDUCE, "apart", apart, op=_native.ADASUM) == np.arange(1, size + 1)).all()
    # By the package's own function, in place, and with a rank that has joined: zeros add nothing.
    both = byteps.push_pull(equal.copy(), op=byteps.Adasum, name="own")
    assert (both == 3).all()
    if rank == 0:
        assert (byteps.push_pull(equal, op=byteps.Adasum, name="alone") == 3).all()
    byteps.join()
    with pytest.raises(byteps.InvalidArgumentError, match="adasum of int32 has no meaning"):
        call(_native.ALL_REDUCE, "whole", np.ones(3, dtype=np.int32), op=_native.ADASUM)
    with pytest.raises(byteps.InvalidArgumentError, match="adasum is an all_reduce"):
        call(_native.REDUCE, "reduce", equal, op=_native.ADASUM)
    byteps.shutdown()


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_adasum_follows_the_formula(run_workers: RunWorkers, workers: int) -> None:
    run_workers(_adasum, workers=workers, servers=0)
