"""How long a plain socket takes from one host of a lab to another: what a protocol over the same cables is judged by.

    seconds = measure(lab.hosts["worker0"], lab.hosts["server0"], size=20_000_000)

From the first byte sent to the word of the other side that it has the last one, on a connection that is there already;
the median of some rounds.
"""

from __future__ import annotations

import select
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # As the two ends it runs by itself.
    from .lab import Host

_PORT = 5201
ROUNDS = 3
_CHUNK = 1 << 20


# Seconds for the receiver to start: an interpreter on a busy machine. What is measured comes after it.
_START = 60


def measure(source: Host, sink: Host, size: int, rounds: int = ROUNDS, limit: float = 20) -> float:
    """Median seconds for `size` bytes; OSError or LabError if it does not work, or takes longer than `limit`."""
    command = [sys.executable, __file__, str(size), str(rounds)]
    server = sink.popen([*command, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], max(limit, _START))[0] or not server.stdout.readline():
            server.kill()
            raise OSError(f"the receiver of the raw socket does not start: {server.communicate()[1]}")
        times = source.run([*command, sink.address], seconds=limit).split()
        return statistics.median(float(each) for each in times)
    finally:
        server.kill()
        server.communicate()


# The two ends wait for each other without a limit of their own: `measure` kills them.


def _serve(size: int, rounds: int) -> None:
    listener = socket.create_server(("", _PORT))
    print("ready", flush=True)
    connection = listener.accept()[0]
    buffer = bytearray(_CHUNK)
    for _ in range(rounds):
        left = size
        while left > 0:
            received = connection.recv_into(buffer, min(left, _CHUNK))
            if received == 0:
                return
            left -= received
        connection.sendall(b"!")


def _send(address: str, size: int, rounds: int) -> None:
    payload = memoryview(bytes(min(size, _CHUNK)))
    with socket.create_connection((address, _PORT)) as connection:
        for _ in range(rounds):
            started = time.perf_counter()
            left = size
            while left > 0:
                left -= connection.send(payload[: min(left, _CHUNK)])
            connection.recv(1)
            print(time.perf_counter() - started)


if __name__ == "__main__":
    _size, _rounds, _what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if _what == "serve":
        _serve(_size, _rounds)
    else:
        _send(_what, _size, _rounds)
