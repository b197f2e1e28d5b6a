"""run(): a Python function as a job, with its results by rank.

    def train(rate):
        bps.init()
        ...
        return loss

    losses = byteps.run(train, args=(0.1,), num_workers=4)
    losses = byteps.run(train, args=(0.1,), hosts="a:4,b:4")

bpslaunch starts the workers, which fetch the function from this process and bring back what it returns, over a
connection that both sides authenticate by a secret of the job.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import IO, Any

# How a worker finds this process; see run_worker.py. Coordinator and servers get them, too: variables whose names begin
# with BYTEPS they would take for misspelt ones.
ADDRESSES = "_BYTEPS_RUN_ADDRESSES"
SECRET = "_BYTEPS_RUN_SECRET"
# With which process bpslaunch ends (launcher/main.py): this one may be killed.
_CALLER = "_BYTEPS_RUN_CALLER"
LOOPBACK = "127.0.0.1"

_OWN_MESSAGE = "bpslaunch: "
_KEPT_LINES = 40
_GREETING_SECONDS = 30  # for a worker to prove that it has the secret
_BACKLOG = 1024
_LAST_SECONDS = 10.0  # when the job is over: to unpickle what has arrived


class WorkerError(RuntimeError):
    """The function raised an exception in a worker, or a worker has ended without a result.

    Attributes:
        rank: of the worker; None if no worker came as far as the function, or, with several hosts, if the function
            had not called init()
        remote_traceback: as the worker has printed it
    """

    def __init__(self, message: str, rank: int | None = None, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.remote_traceback = remote_traceback


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int | None = None,
    hosts: str | Sequence[str] | None = None,
    hostfile: str | None = None,
    num_servers: int | None = None,
    env: Mapping[str, str] | None = None,
    launcher_args: Sequence[str] = (),
) -> list[Any]:
    """Calls `function` in every worker of a job and returns what it returned, by rank.

    The function calls init() itself. Function, arguments and results are pickled: by cloudpickle where it is installed
    (functions of a notebook, lambdas), else by pickle (functions of modules that the workers can import).

    Args:
        function: what every worker calls
        args: positional arguments
        kwargs: keyword arguments
        num_workers: workers of the job; on this host 1 by default, with hosts as many as they have places
        hosts: "a:4,b:4", or a list of such; None: this host
        hostfile: a file with the hosts, as `bpslaunch --hostfile` takes it
        num_servers: servers of the job, as `bpslaunch --servers` takes them
        env: more variables of the workers
        launcher_args: more options of bpslaunch, such as ["--ssh-port", "2222", "--server-hosts", "c,d"]

    Raises:
        WorkerError: the function raised an exception in a worker, which is the __cause__ where it can be pickled; or
            the job ended otherwise.
        TypeError, ValueError, pickle.PicklingError: an argument cannot be used.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    if hosts is not None and not isinstance(hosts, str):
        hosts = ",".join(hosts)
    remote = hosts is not None or hostfile is not None
    with _Desk(_pickled((function, tuple(args), dict(kwargs or {}))), remote) as desk:
        words = [] if num_workers is None and remote else ["--workers", str(1 if num_workers is None else num_workers)]
        for option, value in (("--hosts", hosts), ("--hostfile", hostfile), ("--servers", num_servers)):
            if value is not None:
                words += [option, str(value)]
        variables = {**os.environ, **(env or {}), **desk.variables}
        for name in env or {}:
            words += ["--env", name]
        worker = [sys.executable, "-m", "byteps.run_worker"]
        command = [sys.executable, "-m", "byteps.launcher", *words, *launcher_args, "--", *worker]
        code, said = _supervise(command, variables)
    return desk.results(code, said)


def _supervise(command: list[str], variables: dict[str, str]) -> tuple[int, list[str]]:
    """Runs bpslaunch, which ends the job when this thread ends, whatever ends it. Its exit code, and what it has said
    itself; nothing where it writes to a terminal, at which it was read."""
    said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    piped = None if os.isatty(2) else subprocess.PIPE
    variables = {**variables, _CALLER: str(os.getpid())}
    with subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stderr=piped) as process:
        reader = threading.Thread(target=_pass_on, args=(process.stderr, said), daemon=True)
        if process.stderr is not None:
            reader.start()
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        if process.stderr is not None:
            reader.join()
    return code, list(said)


def _pass_on(errors: IO[bytes], said: collections.deque[str]) -> None:
    """Writes what bpslaunch writes, and keeps its own messages: in a notebook no terminal shows them."""
    for line in errors:
        with contextlib.suppress(OSError):
            os.write(2, line)
        text = line.decode(errors="replace").rstrip()
        if text.startswith(_OWN_MESSAGE):
            said.append(text[len(_OWN_MESSAGE) :])


def _pickled(value: Any) -> bytes:
    with contextlib.suppress(ImportError):
        import cloudpickle

        return cloudpickle.dumps(value)
    return pickle.dumps(value)


class _Desk:
    """Where workers fetch their task and bring their results."""

    def __init__(self, task: bytes, remote: bool) -> None:
        self._task = task
        self._secret = secrets.token_hex(32)
        self._listener = _listen_everywhere() if remote else socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        self._listener.setblocking(True)  # whatever socket.setdefaulttimeout() says
        port = self._listener.getsockname()[1]
        names = _own_names() if remote else [LOOPBACK]
        self.variables = {ADDRESSES: ",".join(f"{name}:{port}" for name in names), SECRET: self._secret}
        self._lock = threading.Lock()
        self._results: dict[tuple[int, int], Any] = {}  # by host and local rank
        self._sizes: dict[int, int] = {}  # workers of each host that has told of itself
        self._hosts = 1
        self._failure: WorkerError | None = None
        self._over = False
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._talks: dict[threading.Thread, Connection] = {}  # those that are open

    def __enter__(self) -> _Desk:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over = True
        # close() alone would not wake accept(), and as long as that waits the port takes connections.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._server.join()
        self._listener.close()
        # The job is over: what is still connected is a stranger, or has nothing to say any more. What has arrived
        # before is read nevertheless.
        with self._lock:
            talks = list(self._talks)
            for connection in self._talks.values():
                _end(connection)
        deadline = time.monotonic() + _LAST_SECONDS
        for talk in talks:
            talk.join(max(0.0, deadline - time.monotonic()))
        self._task = b""

    def results(self, code: int, said: Sequence[str]) -> list[Any]:
        """What the workers have returned, by rank; WorkerError. `said`: by bpslaunch, which has ended with `code`."""
        if self._failure is not None:
            raise self._failure
        if code != 0 or not self._results:
            why = "\n".join(["; bpslaunch says:", *(f"  {line}" for line in said)]) if said else ""
            raise WorkerError(
                f"the job ended with code {code}; {len(self._results)} workers have returned a result{why}"
            )
        missing = self._missing()
        if missing:
            raise WorkerError(
                f"the job ended with code 0, but there is no result of {', '.join(missing)}: the process has ended "
                "before the function had returned, by os._exit() for instance"
            )
        return [self._results[place] for place in sorted(self._results)]

    def _missing(self) -> list[str]:
        """The workers of which there is no result, for people: by rank, as far as the hosts before them are known."""
        missing, rank = [], 0
        for host in range(self._hosts):
            if host not in self._sizes:
                return [*missing, f"the workers of host {host}"]
            for local_rank in range(self._sizes[host]):
                if (host, local_rank) not in self._results:
                    missing.append(f"rank {rank}")
                rank += 1
        return missing

    def _serve(self) -> None:
        while not self._over:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # a connection that is gone already, or the end
                continue
            accepted.setblocking(True)  # whatever socket.setdefaulttimeout() says
            connection = Connection(accepted.detach())
            talk = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            with self._lock:
                self._talks[talk] = connection
            talk.start()

    def _talk(self, connection: Connection) -> None:
        try:
            self._serve_worker(connection)
        finally:
            # One after the other: __exit__() must not end another file of the same number.
            with self._lock:
                del self._talks[threading.current_thread()]
                connection.close()

    def _serve_worker(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            if not _is_ours(connection, self._secret.encode()):
                return
            connection.send_bytes(self._task)
            host, self._hosts, size = pickle.loads(connection.recv_bytes())
            self._sizes[host] = size
            place, rank, ok, value = pickle.loads(connection.recv_bytes())
            worker = f"worker {place[0]}.{place[1]}, before init()" if rank is None else f"rank {rank}"
            failure = None
            if ok:
                try:
                    self._results[place] = pickle.loads(value)
                except Exception as error:  # of a class that is not here, for instance
                    failure = WorkerError(f"{worker} has returned what cannot be unpickled: {error!r}", rank)
                    failure.__cause__ = error
            else:
                text, cause = value
                failure = WorkerError(f"the function raised an exception on {worker}:\n{text}", rank, text)
                failure.__cause__ = None if cause is None else _unpickled(cause)
            with self._lock:
                # The first to fail is the cause: others fail because of it.
                self._failure = self._failure or failure
            connection.send_bytes(b"taken")


def _is_ours(connection: Connection, secret: bytes) -> bool:
    """Whether the other side has the secret; it may ask the same of us. A stranger may be silent."""
    try:
        _give_up_reading_after(connection, _GREETING_SECONDS)
        deliver_challenge(connection, secret)
        answer_challenge(connection, secret)
        _give_up_reading_after(connection, 0)
    except Exception:  # whatever a stranger sends
        return False
    return True


def _end(connection: Connection) -> None:
    """Wakes who reads from it. close() would not."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def _give_up_reading_after(connection: Connection, seconds: int) -> None:
    """0: wait for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _unpickled(data: bytes) -> BaseException | None:
    try:
        cause = pickle.loads(data)
    except Exception:  # of a class that is not here
        return None
    return cause if isinstance(cause, BaseException) else None


def _listen_everywhere() -> socket.socket:
    """At all addresses of this host, those of IPv6 included."""
    with contextlib.suppress(OSError):  # A kernel that knows IPv6, and a host that must not use it.
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", 0), backlog=_BACKLOG)


def _own_names() -> list[str]:
    """By which a worker may reach this host. Addresses of IPv6 come last: where IPv4 works they are not tried."""
    from byteps.launcher.environments.addresses import own_networks
    from byteps.launcher.network_interface import ipv6_addresses

    addresses = [network.partition("/")[0] for network in own_networks()]
    return [*addresses, socket.gethostname(), *ipv6_addresses()]
