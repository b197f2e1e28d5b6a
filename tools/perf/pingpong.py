"""fi_pingpong, of libfabric, as the peer of push_pull over RDMA: the bytes there and back over the same provider.

Between rank 0 and the next rank's host, once for each size: its own figure of many transfers. It comes with Debian's
package libfabric-bin.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from .own_address import own_address

if TYPE_CHECKING:
    from .workload import Workload

_PROGRAM = "fi_pingpong"
_SECONDS = 120
_LARGEST = 1 << 26  # one transfer; larger tensors are several
# Endpoints that the provider has.
_ENDPOINTS = {"efa": "rdm"}


def seconds_of(report: str) -> float:
    """Seconds of one transfer, one way, from what the program prints."""
    header, figures = (line.split() for line in report.strip().splitlines()[-2:])
    return float(figures[header.index("usec/xfer")]) * 1e-6


def free_port() -> int:
    """Of this host, just now."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


class PingPong:
    """A peer (peer.py)."""

    name = "raw"
    reduces = False

    def __init__(self, bps: Any, provider: str) -> None:
        if shutil.which(_PROGRAM) is None:
            raise SystemExit(
                f"bps_perf: --against raw over {provider} runs {_PROGRAM}, which is not here: install libfabric-bin"
            )
        self._bps = bps
        self._command = [_PROGRAM, "-p", provider, "-e", _ENDPOINTS.get(provider, "msg")]
        self._rounds = 0

    def prepare(self, workload: Workload) -> None:
        """Measures it, on the two ranks."""
        bps = self._bps
        self._rounds += 1
        partner = min(1, bps.size() - 1)
        size = min(workload.size, _LARGEST)
        command = [*self._command, "-S", str(size), "-I", str(max(10, min(1000, 100_000_000 // size)))]
        port = free_port() if bps.rank() == partner else 0
        server = None
        if bps.rank() == partner:
            server = subprocess.Popen([*command, "-B", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        place = bps.broadcast_object((own_address(), port), root_rank=partner, name=f"bps_perf.pingpong.{self._rounds}")
        seconds = 0.0
        try:
            if bps.rank() == 0:
                seconds = self._client(command, *place)
        finally:
            if server is not None:
                self._end(server)
        one_way = bps.broadcast_object(seconds, root_rank=0, name=f"bps_perf.pinged.{self._rounds}")
        self._seconds = 2 * one_way * workload.bytes_per_round / size

    def _client(self, command: list[str], address: str, port: int) -> float:
        """Tries until the server is up."""
        error = ""
        for _ in range(20):
            done = subprocess.run(
                [*command, "-P", str(port), address], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            if done.returncode == 0:
                return seconds_of(done.stdout)
            error = done.stderr.strip() or done.stdout.strip()
            time.sleep(0.25)
        raise SystemExit(f"bps_perf: {' '.join(command)} failed: {error}")

    def _end(self, server: subprocess.Popen[bytes]) -> None:
        """It ends with its client; not at all if there was none."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_SECONDS)
        server.kill()
        server.communicate()

    def run(self) -> float:
        """What it measured."""
        return self._seconds

    def stream(self, rounds: int) -> float:
        """What it measured; it does not go both ways at once."""
        return rounds * self._seconds

    def close(self) -> None:
        """Nothing to do."""
