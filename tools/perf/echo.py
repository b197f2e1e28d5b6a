"""The other end of stream.py: sends back what it gets, from one client.

python echo.py 127.0.0.1            # prints the port; ends with its client, or with its standard input
"""

from __future__ import annotations

import os
import select
import socket
import sys

_CHUNK = 1 << 20


def _wait(source: socket.socket) -> bool:
    """Until there is something to read; False: the process that started us has gone."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(sys.stdin, 0)  # its end alone
    return all(descriptor == source.fileno() for descriptor, _ in poll.poll())


def main() -> int:
    """Serves one client."""
    family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    with socket.create_server((sys.argv[1], 0), family=family) as listener:
        os.write(1, f"{listener.getsockname()[1]}\n".encode())
        if not _wait(listener):
            return 1
        connection = listener.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(_CHUNK))
    try:
        while _wait(connection):
            size = connection.recv_into(buffer)
            if size == 0:
                return 0
            connection.sendall(buffer[:size])
    except ConnectionError:
        pass  # as in the client's end
    return 1


if __name__ == "__main__":
    sys.exit(main())
