"""The replayed training step: its models, and the least time that any schedule needs."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from perf.bound import at_the_end, bound, first_in_first_out
from perf.model import Model, Tensor, known_models, read_model

NAMES = ["bert-large", "resnet50", "transformer", "vgg16"]


def make(forward: float, backward: float, *tensors: tuple[int, float, float]) -> Model:
    """Tensors of (bytes / 4, begins, ready)."""
    named = [Tensor(f"t{number}", *each) for number, each in enumerate(tensors)]
    return Model("a test", forward, backward, tuple(sorted(named, key=lambda tensor: tensor.begins)))


def test_the_shipped_models() -> None:
    assert known_models() == NAMES
    for name in NAMES:
        model = read_model(name)
        assert "arXiv" in model.source
        assert model.forward > 0 and model.backward > 0
        for tensor in model.tensors:
            assert 0 <= tensor.begins <= model.forward
            assert 0 <= tensor.ready <= model.backward
        # Gradients of what is used last are ready first.
        first, last = model.tensors[0], model.tensors[-1]
        if name != "transformer":  # its embedding is both
            assert first.ready > last.ready
        assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)


def test_other_sizes_and_speeds() -> None:
    model = read_model("vgg16")
    small = model.shrunk(8)
    assert model.size / 8 <= small.size <= model.size / 8 + 4 * len(model.tensors)
    fast = model.lasting(0.5)
    assert fast.forward + fast.backward == pytest.approx(0.5)
    assert fast.tensors[5].ready / fast.backward == pytest.approx(model.tensors[5].ready / model.backward)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "needs forward_ms"),
        ("forward_ms 1\nbackward_ms 1\n", "needs forward_ms"),
        ("forward_ms 1\nbackward_ms x\n", ":2: x is no time"),
        ("hello\n", ":1: expected `forward_ms MS`"),
        ("forward 3\n", ":1: expected `forward_ms MS`"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3x 0 0\n", ":3: 3x is no shape"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3 0\n", ":3: expected `tensor NAME SHAPE BEGINS_MS READY_MS`"),
        ("forward_ms nan\nbackward_ms 1\ntensor a 3 0 0\n", ":1: nan is no time"),
        ("forward_ms 1\nbackward_ms inf\ntensor a 3 0 0\n", ":2: inf is no time"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3 -1 0\n", ":3: -1 is no time"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3 0 nan\n", ":3: nan is no time"),
        ("forward_ms 0\nbackward_ms 0\ntensor a 3 0 0\n", "computes nothing"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3x0 0 0\n", ":3: 3x0 is no shape"),
        ("forward_ms 1\nbackward_ms 1\ntensor a -3x-4 0 0\n", ":3: -3x-4 is no shape"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3x\u0664 0 0\n", ":3: 3x\u0664 is no shape"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 1048576x1048577 0 0\n", ":3: 1048576x1048577 is no shape"),
        ("forward_ms 1\nforward_ms 2\nbackward_ms 1\ntensor a 3 0 0\n", ":2: forward_ms is there already"),
        ("forward_ms 1\nbackward_ms 1\nbackward_ms 1\ntensor a 3 0 0\n", ":3: backward_ms is there already"),
        ("forward_ms 1\nbackward_ms 1\ntensor a 3 0 0\ntensor a 4 0 0\n", ":4: there is a tensor a already, in line 3"),
        ("tensor a 3 1.5 0\nforward_ms 1\nbackward_ms 2\n", ":1: 1.5 ms of a is beyond forward_ms 1"),
        ("tensor a 3 0 1.5\nforward_ms 2\nbackward_ms 1\n", ":1: 1.5 ms of a is beyond backward_ms 1"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.model"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        read_model(str(path))
    with pytest.raises(ValueError, match="known are bert-large"):
        read_model("alexnet")


def test_what_is_no_text_file_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.model"
    binary.write_bytes(b"\xc8\x00\xff")
    for path in (tmp_path, binary):
        with pytest.raises(ValueError, match=f"{path}: it cannot be read as a text file"):
            read_model(str(path))


def test_without_communication_a_step_is_its_computation() -> None:
    for name in NAMES:
        model = read_model(name)
        for best in (bound, first_in_first_out, at_the_end):
            assert best(model, 0) == pytest.approx(model.forward + model.backward)


def test_what_is_needed_first_overtakes() -> None:
    # The large one is ready at once and needed at the end; the small one is ready at 1 and needed at once.
    model = make(1.0, 1.0, (1, 0.0, 1.0), (8, 1.0, 0.0))
    per_byte = 1 / 4
    # Best: 1 s of the large one, the small one, the rest until 9; fifo: large until 8, small until 9, forward until 10.
    assert bound(model, per_byte) == pytest.approx(9.0)
    assert first_in_first_out(model, per_byte) == pytest.approx(10.0)
    assert at_the_end(model, per_byte) == pytest.approx(10.0)


def test_no_schedule_is_faster() -> None:
    """All schedules of small whole numbers, slot by slot."""
    chance = random.Random(3)
    for _ in range(60):
        count = chance.randint(1, 3)
        tensors = [(chance.randint(1, 3), chance.randint(0, 3), chance.randint(0, 3)) for _ in range(count)]
        model = make(3.0, 3.0, *tensors)

        def best(now: int, left: tuple[int, ...], model: Model = model) -> float:
            """The end of the step, from here on."""
            if not any(left):
                return model.forward + model.backward
            ready = [i for i, size in enumerate(left) if size and model.tensors[i].ready <= now]
            if not ready:
                return best(now + 1, left)
            ends = []
            for i in ready:
                after = (*left[:i], left[i] - 1, *left[i + 1 :])
                end = best(now + 1, after)
                if after[i] == 0:
                    end = max(end, now + 1 + model.forward - model.tensors[i].begins)
                ends.append(end)
            return min(ends)

        assert bound(model, 1 / 4) == pytest.approx(best(0, tuple(each.elements for each in model.tensors)))


def test_the_bounds_are_ordered() -> None:
    for name in NAMES:
        model = read_model(name)
        for seconds in (0.1, 1, 10):
            per_byte = seconds / model.size
            times = [best(model, per_byte) for best in (bound, first_in_first_out, at_the_end)]
            assert times == sorted(times)
            assert times[0] >= seconds


class Time:
    """In place of the module: goes on while a process sleeps, and some sleep too long."""

    def __init__(self, late: Sequence[float] = ()) -> None:
        """`late`: by how much the first sleeps are too long, in seconds."""
        self._now = 0.0
        self._late = list(late)

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds + (self._late.pop(0) if self._late else 0.0)


def test_gradients_are_written_before_they_are_ready_and_the_warm_up_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from perf.replay import replay

    class Recorder:
        def __init__(self) -> None:
            self.calls: list[tuple[str, str]] = []

        def write(self, tensor: Tensor) -> None:
            self.calls.append(("write", tensor.name))

        def hand_in(self, tensor: Tensor) -> None:
            self.calls.append(("hand in", tensor.name))

        def end_of_backward(self) -> None:
            self.calls.append(("end", ""))

        def wait_for(self, tensor: Tensor) -> None:
            self.calls.append(("wait", tensor.name))

    recorder = Recorder()
    model = make(0.002, 0.002, (4, 0.0, 0.002), (4, 0.001, 0.001))
    monkeypatch.setattr("perf.replay.time", Time())
    assert replay(model, recorder, 2, 3) == pytest.approx([0.004, 0.004])
    backward = [("write", "t1"), ("hand in", "t1"), ("write", "t0"), ("hand in", "t0"), ("end", "")]
    assert recorder.calls == 5 * [*backward, ("wait", "t0"), ("wait", "t1")]
    # What was slept too long is caught up, in the next step if need be: the computation would have gone on.
    monkeypatch.setattr("perf.replay.time", Time(late=[0.0005, 0, 0, 0.0015]))
    assert replay(model, Recorder(), 3, 0) == pytest.approx([0.0055, 0.0025, 0.004])


class Group:
    """In place of Gloo: every rank has what this one has."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.started: list[int] = []  # bytes
        self.waiting = 0

    def all_reduce(self, tensor: Any, async_op: bool) -> Group:
        assert async_op
        self.started.append(4 * tensor.numel())
        self.waiting += 1
        tensor.mul_(self._size)
        return self

    def wait(self) -> None:
        self.waiting -= 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shrink", [1, 8])
def test_buckets_are_those_of_distributed_data_parallel(name: str, shrink: int) -> None:
    """Gradients in the order in which they are ready, in buckets that are closed before they would be above 1 MiB, the
    first one, and 25 MiB, all others; a bucket goes when its last gradient is there."""
    pytest.importorskip("torch")
    from perf.replay import Buckets

    model = read_model(name).shrunk(shrink)
    group = Group(3)
    buckets = Buckets(group, model, shrink)
    by_ready = sorted(model.tensors, key=lambda tensor: tensor.ready)
    for _ in range(2):
        group.started.clear()
        handed_in, gone = 0, 0
        for position, tensor in enumerate(by_ready):
            buckets.write(tensor)
            buckets.hand_in(tensor)
            handed_in += tensor.size
            # What is not gone is in the bucket that is filling, and has room for it.
            assert sum(group.started) <= handed_in
            limit = ((1 << 20) if gone == 0 else (25 << 20)) / shrink
            if len(group.started) > gone:
                gone = len(group.started)
                assert sum(group.started) == handed_in
                following = by_ready[position + 1].size if position + 1 < len(by_ready) else limit
                assert group.started[-1] + following > limit
                assert group.started[-1] <= limit or group.started[-1] == tensor.size
        assert group.waiting == len(group.started) > 0
        assert sum(group.started) == model.size
        buckets.end_of_backward()
        assert group.waiting == 0
        buckets.check(3)
    with pytest.raises(SystemExit, match="wrong sum of a bucket"):
        buckets.check(2)
