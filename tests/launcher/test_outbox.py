"""Output that waits for its reader."""

from __future__ import annotations

import os
import pathlib
import selectors
import time
from collections.abc import Iterator

import pytest
from launching import DEADLINE

from launcher.outbox import Outbox

MUCH = 1 << 20  # more than a pipe holds


class Pipe:
    """A pipe with an Outbox at its writing end."""

    def __init__(self, shared: bool = False) -> None:
        self.read, self.write = os.pipe()
        self.selector = selectors.DefaultSelector()
        self.errors: list[OSError] = []
        self.outbox = Outbox(self.write, self.selector, self.errors.append, shared)

    def take(self, count: int) -> bytes:
        """Reads so many bytes, and lets the outbox send."""
        data = b""
        while len(data) < count:
            data += os.read(self.read, count - len(data))
            self.serve()
        return data

    def serve(self) -> None:
        """Sends what can be sent now."""
        for key, _ in self.selector.select(0):
            key.data()

    def close(self) -> None:
        """Closes both ends."""
        for descriptor in (self.read, self.write):
            os.close(descriptor)


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    pipe = Pipe(request.param)
    yield pipe
    pipe.close()


def test_all_of_it_comes_in_its_order(pipe: Pipe) -> None:
    data = bytes(range(256)) * (MUCH // 256)
    pipe.outbox.send(data)
    pipe.outbox.send(b"the end")
    assert 0 < pipe.outbox.size < MUCH + 7
    assert pipe.take(MUCH + 7) == data + b"the end"
    assert pipe.outbox.size == 0


def test_it_tells_when_a_piece_was_taken(pipe: Pipe) -> None:
    taken: list[int] = []
    pipe.outbox.send(b"x" * MUCH, lambda: taken.append(1))
    pipe.outbox.send(b"y", lambda: taken.append(2))
    assert taken == []
    pipe.take(MUCH)
    pipe.serve()
    assert taken == [1, 2]


def test_a_line_of_which_a_part_was_written_ends(pipe: Pipe) -> None:
    taken: list[int] = []
    pipe.outbox.send(b"x" * MUCH + b"\n", lambda: taken.append(1))
    pipe.outbox.send(b"a second line\n", lambda: taken.append(2))
    pipe.outbox.send(b"a message\n", lasting=True)
    written = MUCH + 1 + 14 + 10 - pipe.outbox.size
    pipe.outbox.drop()
    assert taken == [1, 2]
    assert pipe.take(written + 11) == b"x" * written + b"\na message\n"


def test_whole_lines_stay_as_they_are(pipe: Pipe) -> None:
    pipe.outbox.send(b"a line\n")
    pipe.outbox.drop()
    pipe.outbox.send(b"a message\n", lasting=True)
    assert pipe.take(17) == b"a line\na message\n"


def test_without_a_reader(pipe: Pipe) -> None:
    """It is told once; what waits, and what comes later, counts as taken."""
    taken: list[int] = []
    pipe.outbox.send(b"x" * MUCH, lambda: taken.append(1))
    os.close(pipe.read)
    try:
        pipe.serve()
        pipe.outbox.send(b"y", lambda: taken.append(2))
    finally:
        pipe.read = os.open(os.devnull, os.O_RDONLY)
    assert taken == [1, 2]
    assert [type(error) for error in pipe.errors] == [BrokenPipeError]
    assert pipe.outbox.size == 0
    assert not pipe.selector.get_map()


def test_what_others_write_to_stays_blocking() -> None:
    pipe = Pipe(shared=True)
    try:
        pipe.outbox.send(b"x" * MUCH)
        assert os.get_blocking(pipe.write)
    finally:
        pipe.close()


def test_a_file(tmp_path: pathlib.Path) -> None:
    """It is written behind what is there already."""
    path = tmp_path / "output"
    with path.open("wb", buffering=0) as file:
        file.write(b"before\n")
        outbox = Outbox(file.fileno(), selectors.DefaultSelector(), pytest.fail, shared=True)
        outbox.send(b"x" * MUCH)
        assert outbox.size == 0
    assert path.read_bytes() == b"before\n" + b"x" * MUCH


def test_it_drains_until_the_deadline(pipe: Pipe) -> None:
    began = time.monotonic()
    pipe.outbox.send(b"x" * MUCH)
    pipe.outbox.drain(began + 0.2)
    assert 0.2 <= time.monotonic() - began < DEADLINE
    assert pipe.outbox.size > 0
