"""A job whose roles are started one by one, by hand: several hosts, simulated on this one."""

from __future__ import annotations

from launching import BPSLAUNCH, TRAINER, Launch, Spawn, free_port

LARGE = "1000000"
TOKEN = "a secret of the tests, long enough"


class RoleJob:
    """The variables of a job of several hosts, and its processes."""

    def __init__(self, spawn: Spawn, real: dict[str, str], hosts: int, servers: int = 1, **variables: str) -> None:
        self.port = free_port()
        self._spawn = spawn
        self._variables = {
            **real,
            "DMLC_NUM_WORKER": str(hosts),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(self.port),
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_JOB_TOKEN": TOKEN,
            "BYTEPS_JOB_LINGER": "0",
            "BYTEPS_START_TIMEOUT": "100",
            **variables,
        }

    def coordinator(self, **variables: str) -> Launch:
        return self._role("scheduler", [], variables)

    def server(self, **variables: str) -> Launch:
        return self._role("server", [], variables)

    def host(self, index: int, workers: int, *arguments: str, **variables: str) -> Launch:
        """A host's workers, under bpslaunch."""
        place = {"DMLC_WORKER_ID": str(index), "BYTEPS_LOCAL_SIZE": str(workers)}
        return self._role("worker", [*TRAINER, *arguments], {**place, **variables})

    def host_with_server(self, index: int, *arguments: str, **variables: str) -> Launch:
        """A host's only worker and the server beside it, under bpslaunch."""
        place = {"DMLC_WORKER_ID": str(index), "BYTEPS_LOCAL_SIZE": "1"}
        return self._role("worker", ["--colocate", *TRAINER, *arguments], {**place, **variables})

    def plain(self, index: int, *arguments: str, **variables: str) -> Launch:
        """A host's only worker, without bpslaunch."""
        place = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(index)}
        return self._spawn(*TRAINER, *arguments, variables={**self._variables, **place, **variables})

    def _role(self, role: str, command: list[str], variables: dict[str, str]) -> Launch:
        return self._spawn(*BPSLAUNCH, *command, variables={**self._variables, "DMLC_ROLE": role, **variables})
