"""What the library has to say of slow servers, noticed on its way to the standard error.

notices = Notices()                     # before bps.init()
...
notices.print_slow(bps.rank())
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading


class Notices:
    """Stands between this process and its standard error; passes everything on."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        read, write = os.pipe()
        self._screen = os.dup(2)
        os.dup2(write, 2)
        os.close(write)
        self._thread = threading.Thread(target=self._pass_on, args=(read,), daemon=True)
        self._thread.start()
        atexit.register(self._close)  # after the traceback of whatever went wrong

    def _close(self) -> None:
        os.dup2(self._screen, 2)
        self._thread.join()

    def _pass_on(self, read: int) -> None:
        with open(read, "rb", buffering=0) as source:
            rest = b""
            while chunk := source.read(65536):
                with contextlib.suppress(OSError):
                    os.write(self._screen, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                self._lines += [line.decode(errors="replace") for line in lines if b" is slow: " in line]

    def slow(self) -> list[str]:
        """The slow servers, each once, and how long its partitions and those of the others took when last noticed."""
        found = {}
        for line in self._lines:
            each = re.search(r"(server \d+ \([^)]*\)) is slow: .*?(\d+ ms).*?other servers (\d+ ms)", line)
            if each is not None:
                found[each[1]] = f" ({each[2]} for a partition, the others {each[3]})"
        return [server + times for server, times in sorted(found.items())]

    def print_slow(self, rank: int) -> None:
        """The servers that held up all others; on standard error, beside the table."""
        if rank == 0 and self.slow():
            print(f"bps_perf: slow: {', '.join(self.slow())}", file=sys.stderr, flush=True)
