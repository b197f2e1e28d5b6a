"""A plain socket as the peer of push_pull: the bytes there and back, by all workers at once.

Beside each worker runs a process (echo.py) that sends back what it gets; the worker before it in the order of ranks,
which may be on another host, is its client. So each byte crosses the network as often as those of a push_pull through
servers, and nothing is added up.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .own_address import own_address

if TYPE_CHECKING:
    from .workload import Workload

_SECONDS = 120
_CHUNK = 1 << 20
_AT_ONCE = 1 << 14  # fits into the buffers of every socket


class Stream:
    """A peer (peer.py)."""

    name = "raw"
    reduces = False

    def __init__(self, bps: Any) -> None:
        address = own_address()
        self._echo = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("echo.py")), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._echo.stdout is not None
        line = self._echo.stdout.readline()
        if not line:
            raise SystemExit(f"bps_perf: the other end of the plain socket has ended with {self._echo.wait()}")
        places = [
            bps.broadcast_object((address, int(line)), root_rank=rank, name=f"bps_perf.echo.{rank}")
            for rank in range(bps.size())
        ]
        self._socket = socket.create_connection(places[(bps.rank() + 1) % bps.size()], _SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def prepare(self, workload: Workload) -> None:
        """What comes are rounds of so many bytes."""
        self._size = workload.bytes_per_round
        self._sent = memoryview(bytearray(self._size))
        self._received = memoryview(bytearray(self._size))

    def run(self) -> None:
        """Once there and back."""
        self.stream(1)

    def stream(self, rounds: int) -> None:
        """So many times, without waiting in between."""
        try:
            if rounds * self._size > _AT_ONCE:
                self._both_ways(rounds)
            else:
                for _ in range(rounds):
                    self._in_turn()
        except ConnectionError as error:
            raise SystemExit(f"bps_perf: the other end of the plain socket has gone: {error}") from None

    def _in_turn(self) -> None:
        self._socket.sendall(self._sent)
        got = 0
        while got < self._size:
            got += self._receive(got, 0)

    def _receive(self, at: int, flags: int) -> int:
        size = self._socket.recv_into(self._received[at : at + _CHUNK], 0, flags)
        if size == 0:
            raise ConnectionError("it has closed the connection")
        return size

    def _both_ways(self, rounds: int) -> None:
        total = rounds * self._size
        sent = got = 0
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        while got < total:
            if not (events := poll.poll(_SECONDS * 1000)):
                raise SystemExit(f"bps_perf: nothing moves on the plain socket for {_SECONDS} s")
            ready = events[0][1]
            if ready & select.POLLOUT and sent < total:
                at = sent % self._size
                sent += self._socket.send(self._sent[at : at + _CHUNK], socket.MSG_DONTWAIT)
                if sent == total:
                    poll.modify(self._socket, select.POLLIN)
            if ready & (select.POLLIN | select.POLLHUP | select.POLLERR):
                at = got % self._size
                got += self._receive(at, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """The process beside us ends when its client does."""
        self._socket.close()
        assert self._echo.stdin is not None and self._echo.stdout is not None
        try:
            self._echo.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._echo.kill()
            self._echo.wait()
        self._echo.stdin.close()
        self._echo.stdout.close()
