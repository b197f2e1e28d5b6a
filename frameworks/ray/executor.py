"""RayExecutor: a job as actors of a Ray cluster, with the methods of Horovod's."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from byteps.ray.actors import Server, Worker
from byteps.ray.log import Callbacks
from byteps.ray.places import plan

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
# Of create_settings(): what nothing here takes, and why.
_SETTINGS_OF_OTHERS = {
    "ssh_identity_file": "ssh is not used here",
    "ssh_str": "ssh is not used here",
    "nics": "name the interface by start(extra_env_vars={'DMLC_INTERFACE': 'eth0'})",
}
_ELASTIC = ("min_workers", "max_workers", "reset_limit", "cooldown_range", "elastic_timeout", "override_discovery")
_ANY_BUNDLE = -1

# After the first failure: how long the others have to fail, too, until the likeliest cause is told.
_CAUSE_SECONDS = 3.0
# While functions run: how long what they log waits at most.
_BETWEEN_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the jobs of an executor have in common."""

    placement_timeout: float = 100.0  # seconds until the cluster has the resources
    start_timeout: float = 120.0  # seconds until all actors run
    placement_strategy: str = "PACK"  # of the actors (with num_hosts: of servers): PACK on few nodes, SPREAD over many


class RayExecutor:
    """Workers as actors; servers as actors with resources of their own.

    Args:
        settings: of create_settings(); None: the defaults
        num_workers: workers in all; or
        num_hosts: nodes, each with its own workers, whatever num_servers and placement_strategy are; with
        num_workers_per_host: workers on each
        cpus_per_worker: CPUs that Ray keeps for a worker
        use_gpu: whether a worker has GPUs; it sees those of all workers of its host, of which its own has the number
            local_rank()
        gpus_per_worker: how many (1)
        use_current_placement_group: within a task or actor that has a placement group (a trial of Ray Tune), the actors
            go into that one, wherever it has room; it stays when the executor ends. False: a group of their own
        num_servers: servers in all; None: one beside the first worker of each node, if there are several
        cpus_per_server: CPUs that Ray keeps for a server, where num_servers is given
        elastic: the arguments of Horovod's elastic jobs. ValueError: the number of workers of an executor is fixed
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 120.0,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100.0,
        nics: Any = None,
        placement_strategy: str = "PACK",
    ) -> Settings:
        """Settings for the executor. Raises TypeError for what BytePS has no counterpart of: ssh and nics."""
        others = {"ssh_identity_file": ssh_identity_file, "ssh_str": ssh_str, "nics": nics}
        for name, value in others.items():
            if value is not None:
                raise TypeError(f"create_settings() takes no {name}: {_SETTINGS_OF_OTHERS[name]}")
        if placement_strategy not in _STRATEGIES:
            raise ValueError(f"placement_strategy is {placement_strategy!r}; expected one of {', '.join(_STRATEGIES)}")
        return Settings(placement_group_timeout_s, timeout_s, placement_strategy)

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        num_servers: int | None = None,
        cpus_per_server: int = 1,
        **elastic: Any,
    ) -> None:
        _refuse(elastic)
        if (num_workers is None) == (num_hosts is None):
            raise ValueError("give num_workers, or num_hosts and num_workers_per_host")
        counts = {
            "num_workers": num_workers,
            "num_hosts": num_hosts,
            "num_workers_per_host": num_workers_per_host,
            "gpus_per_worker": gpus_per_worker,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}; it must be at least 1")
        if num_servers is not None and num_servers < 0:
            raise ValueError(f"num_servers is {num_servers}; it must not be negative")
        if gpus_per_worker is not None and not use_gpu:
            raise ValueError("gpus_per_worker is given, but use_gpu is not set")
        self._settings = settings or Settings()
        self._hosts = num_hosts
        self._per_host = num_workers_per_host
        self._count = num_workers if num_workers is not None else (num_hosts or 0) * num_workers_per_host
        self._resources = {"CPU": float(cpus_per_worker)}
        if use_gpu:
            self._resources["GPU"] = float(gpus_per_worker or 1)
        self._num_servers = num_servers
        self._cpus_per_server = cpus_per_server
        self._use_current_group = use_current_placement_group
        self._group: PlacementGroup | None = None
        self._own_group = True
        self._group_of_servers: PlacementGroup | None = None  # None: they are in that of the workers
        self._workers: list[Any] = []  # by rank
        self._servers: list[Any] = []

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._count

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] = (),
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the actors; the functions that they run call init(). With a class, makes one object of it in each.

        Raises:
            TimeoutError: the cluster, or the current placement group, has not the resources
            ValueError: num_hosts within the placement group of another program
            RuntimeError: started already, or coordinator or servers cannot start
        """
        if self._group is not None:
            raise RuntimeError("the executor has started already: shutdown() first")
        try:
            self._start(dict(extra_env_vars or {}))
            if executable_cls is not None:
                made = (executable_cls, tuple(executable_args), dict(executable_kwargs or {}))
                _all([worker.make.remote(*made) for worker in self._workers])
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None,
    ) -> list[Any]:
        """Calls the function in every worker; what it returned, by rank. Raises what Ray raises: RayTaskError,
        ActorDiedError; of several the likeliest cause. `callbacks`: called here with what rank 0 logs (byteps.ray.log)
        while the function runs."""
        if not callbacks:
            return _all(self.run_remote(fn, args, kwargs))
        given = (fn, tuple(args or ()), dict(kwargs or {}))
        return self._with_callbacks("run", given, callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As run(), without waiting: references for ray.get(), by rank."""
        return [worker.run.remote(fn, tuple(args or ()), dict(kwargs or {})) for worker in self._started()]

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None
    ) -> list[Any]:
        """Calls the function in every worker with the object that start() has made there; the results, by rank.
        `callbacks`: as those of run()."""
        if not callbacks:
            return _all([worker.execute.remote(fn) for worker in self._started()])
        return self._with_callbacks("execute", (fn,), callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """As execute(), on rank 0 alone. A function that communicates would wait for the others."""
        return ray.get(self._started()[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Ends the actors, and what is beside them. start() may follow."""
        for actor in [*self._workers, *self._servers]:
            ray.kill(actor)
        self._workers, self._servers = [], []
        for group in (self._group, self._group_of_servers):
            if group is not None and self._own_group:
                remove_placement_group(group)
        self._group, self._group_of_servers = None, None

    def _with_callbacks(
        self, method: str, given: tuple[Any, ...], callbacks: Sequence[Callable[..., Any]]
    ) -> list[Any]:
        workers = self._started()
        told = Callbacks(callbacks)
        try:
            first, *others = (getattr(worker, method) for worker in workers)
            references = [first.remote(*given, log=told.queue), *(each.remote(*given) for each in others)]
            return _all(references, told.deliver)
        finally:
            told.close()

    def _started(self) -> list[Any]:
        if not self._workers:
            raise RuntimeError("the executor has not started: start() first")
        return self._workers

    def _start(self, variables: dict[str, str]) -> None:
        apart = self._num_servers or 0
        current = get_current_placement_group() if self._use_current_group else None
        if current is None:
            self._make_groups(apart)
        elif self._hosts is not None:
            raise ValueError(
                "num_hosts cannot be kept within the current placement group, whose bundles are where they are: give "
                "num_workers, or use_current_placement_group=False"
            )
        else:
            self._group, self._own_group = current, False
        created = [self._actor(Worker, self._group, self._bundle_of(index), variables) for index in range(self._count)]
        self._workers = created
        reports = self._reports(created)
        job = plan(reports, self._num_servers)
        self._workers = [created[index] for index in job.order]
        common = {**job.common}
        seconds = self._settings.start_timeout
        if job.address is not None:
            port = ray.get(self._workers[0].start_services.remote(job.address, [], common, 0), timeout=seconds)
            common["DMLC_PS_ROOT_URI"], common["DMLC_PS_ROOT_PORT"] = job.address, str(port)
        _all([worker.set_variables.remote({**common, **job.places[rank]}) for rank, worker in enumerate(self._workers)])
        servers = int(common["DMLC_NUM_SERVER"])
        if apart:
            group, first = self._group_of_servers or self._group, 0 if self._group_of_servers else len(self._bundles())
            self._servers = [
                self._actor(Server, group, first + rank if self._own_group else _ANY_BUNDLE, variables)
                for rank in range(apart)
            ]
            started = [server.start.remote(rank, common) for rank, server in enumerate(self._servers)]
            self._once_running(started, f"{apart} servers with {{'CPU': {self._cpus_per_server}}}")
        elif servers:
            _all(
                [
                    self._workers[rank].start_services.remote(None, [number], common, 1)
                    for number, rank in enumerate(job.first_of_host)
                ]
            )

    def _make_groups(self, apart: int) -> None:
        workers, servers = self._bundles(), [{"CPU": float(self._cpus_per_server)}] * apart
        strategy = self._settings.placement_strategy
        deadline = time.monotonic() + self._settings.placement_timeout
        self._own_group = True
        if self._hosts is None:
            self._group = placement_group(workers + servers, strategy=strategy)
            self._once_placed(self._group, strategy, deadline)
            return
        # Each host is a node of its own; servers may be on the same nodes, which one group would not allow.
        self._group = placement_group(workers, strategy="STRICT_SPREAD")
        self._once_placed(self._group, "STRICT_SPREAD", deadline)
        if servers:
            self._group_of_servers = placement_group(servers, strategy=strategy)
            self._once_placed(self._group_of_servers, strategy, deadline)

    def _once_placed(self, group: PlacementGroup, strategy: str, deadline: float) -> None:
        if not group.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(
                f"the cluster has not {group.bundle_specs} ({strategy}) within "
                f"{self._settings.placement_timeout:g} s; it has {ray.available_resources()}"
            )

    def _reports(self, workers: Sequence[Any]) -> list[Any]:
        reports = [worker.report.remote() for worker in workers]
        return self._once_running(reports, f"{len(workers)} workers with {self._resources}")

    def _once_running(self, answers: Sequence[Any], actors: str) -> list[Any]:
        """The first answers of actors; TimeoutError if the cluster, or the group, has no room for all of them."""
        try:
            return _all(answers, seconds=self._settings.start_timeout)
        except ray.exceptions.GetTimeoutError:
            room = "" if self._own_group else f"; the current placement group has {self._group.bundle_specs}"
            raise TimeoutError(f"not all of {actors} run within {self._settings.start_timeout:g} s{room}") from None

    def _bundles(self) -> list[dict[str, float]]:
        if self._hosts is None:
            return [dict(self._resources) for _ in range(self._count)]
        return [{name: value * self._per_host for name, value in self._resources.items()} for _ in range(self._hosts)]

    def _bundle_of(self, worker: int) -> int:
        if not self._own_group:
            return _ANY_BUNDLE
        return worker if self._hosts is None else worker // self._per_host

    def _actor(self, kind: type, group: PlacementGroup | None, bundle: int, variables: dict[str, str]) -> Any:
        cpus = self._cpus_per_server if kind is Server else self._resources["CPU"]
        gpus = 0.0 if kind is Server else self._resources.get("GPU", 0.0)
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": where}
        if variables:
            options["runtime_env"] = {"env_vars": variables}
        return ray.remote(**options)(kind).remote()


def _refuse(elastic: Mapping[str, Any]) -> None:
    unknown = sorted(set(elastic) - set(_ELASTIC))
    if unknown:
        raise TypeError(f"RayExecutor() has no {', '.join(unknown)}")
    asked = sorted(name for name, value in elastic.items() if value is not None)
    if asked:
        raise ValueError(
            f"RayExecutor() does not take {', '.join(asked)}: its number of workers is fixed. After a failure "
            "shutdown() and start() again; or let Ray Train do it: "
            "TorchTrainer(torch_config=byteps.ray.BytePSConfig(), run_config=RunConfig(failure_config=...))"
        )


def _all(
    references: Sequence[Any], between: Callable[[], None] | None = None, seconds: float | None = None
) -> list[Any]:
    """The results; of several failures the likeliest cause: who dies, or raises, before those that lose it. `between`:
    called again and again meanwhile, and once when all have come. GetTimeoutError after `seconds` without a failure."""
    waiting = list(references)
    failures: list[BaseException] = []
    deadline = None if seconds is None else time.monotonic() + seconds
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = left if between is None else min(_BETWEEN_SECONDS, _BETWEEN_SECONDS if left is None else left)
        done, waiting = ray.wait(waiting, num_returns=1, timeout=pause)
        if between is not None:
            between()
        if not done and (between is None or left == 0.0):
            break
        if not done:
            continue
        try:
            ray.get(done[0])
        except Exception as error:
            if not failures:
                deadline = min(deadline or math.inf, time.monotonic() + _CAUSE_SECONDS)
            failures.append(error)
    if failures:
        raise min(failures, key=_consequence)
    if waiting:
        raise ray.exceptions.GetTimeoutError
    return ray.get(list(references))


def _consequence(error: BaseException) -> bool:
    """Whether it only tells that another rank is gone."""
    return "byteps.errors.UnavailableError" in str(error)
