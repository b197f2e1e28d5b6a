"""A Ray cluster whose nodes are hosts: own network, process ids, names and shared memory, by real `ray start`.

    with RayHosts(tmp_path, 2) as cluster:
        driver = cluster.start_driver("driver.py", "argument")
        cluster.hosts[1].unplug(cluster.hosts.center)

The first host is the head, and where drivers run.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from launching import wait_until
from ssh_hosts import SshHosts

_PORT = 6379
_CPUS = 2
_START_SECONDS = 180.0
# How soon Ray gives up a silent node, and a node its silent head; see docs/launch/ray.md.
PATIENCE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "2000",
    "RAY_grpc_client_keepalive_timeout_ms": "2000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "4",
}


class RayHosts:
    """Nodes `lh1` (the head) to `lhN`."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self.hosts = SshHosts(folder, count)
        self._count = count
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._sessions = pathlib.Path()
        self._drivers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RayHosts:
        self.hosts.__enter__()
        try:
            # Sockets have short names.
            self._sessions = pathlib.Path(tempfile.mkdtemp(prefix="bps-ray-"))
            for number in range(self._count):
                self._start_node(number)
            wait_until(self._complete, self._log, _START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for process in [*self._drivers, *self._nodes]:
            process.kill()  # of a node: and with it all of the host
            process.wait()
        self.hosts.__exit__()
        shutil.rmtree(self._sessions, ignore_errors=True)

    @property
    def address(self) -> str:
        """For ray.init()."""
        return f"{self.hosts[0].address}:{_PORT}"

    def start_driver(self, output: pathlib.Path, *words: str) -> subprocess.Popen[bytes]:
        """A Python script on the head."""
        init = _child(self._nodes[0].pid)
        spaces = ["nsenter", f"--target={init}", "--net", "--uts", "--ipc", "--mount", "--pid", "--"]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*spaces, sys.executable, *words],
                env=_variables(),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._drivers.append(process)
        return process

    def crash(self, number: int) -> None:
        """All of a host but its name."""
        self._nodes[number].kill()
        self._nodes[number].wait()

    def ours(self, number: int) -> dict[int, str]:
        """Actors of the executor on this host, and what is beside them."""
        parts = ("ray::Worker", "ray::Server", "byteps_server", "--companion")
        return {
            pid: line for pid, line in self.hosts[number].processes().items() if any(part in line for part in parts)
        }

    def _start_node(self, number: int) -> None:
        host = self.hosts[number]
        sessions = self._sessions / str(number)
        sessions.mkdir()
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        size = [f"--num-cpus={_CPUS}", "--object-store-memory=100000000", f"--node-ip-address={host.address}"]
        head = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={sessions}"]
        member = [f"--address={self.address}", f"--temp-dir={sessions}"]
        script = f'hostname {host.name}; mount -t tmpfs tmpfs /dev/shm; "$@" & wait'
        spaces = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        with (self._folder / f"node{number}.log").open("wb") as log:
            self._nodes.append(
                subprocess.Popen(
                    [
                        *("nsenter", f"--net=/run/netns/{host.namespace}"),
                        *spaces,
                        *("sh", "-c", script, "sh"),
                        *ray,
                        *size,
                        *(head if number == 0 else member),
                    ],
                    env=_variables(),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        # The head answers before others come.
        wait_until(lambda: "Ray runtime started" in self._log(number), lambda: self._log(number), _START_SECONDS)

    def _complete(self) -> bool:
        return all("Ray runtime started" in self._log(number) for number in range(self._count))

    def _log(self, number: int = 0) -> str:
        return (self._folder / f"node{number}.log").read_text(errors="replace")


def _variables() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_", "RAY_"))}
    support = pathlib.Path(__file__).resolve().parent
    own = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1", **PATIENCE}
    return {**kept, **own, "PYTHONPATH": f"{support}:{kept.get('PYTHONPATH', '')}"}


def _child(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
