"""Which worker is who: the variables of each, from what the workers have said about their hosts."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Sequence

from byteps.launcher.environments.addresses import meeting_address
from byteps.launcher.failure import LaunchError
from byteps.launcher.host_identity import this_host
from byteps.launcher.job_token import token_variables


@dataclasses.dataclass(frozen=True)
class Report:
    """What a worker says of the host that Ray has put it on."""

    host: str  # workers with the same text are on one host
    networks: list[str]  # its addresses, `10.0.0.7/24`
    silence: dict[str, str]  # variables: how soon a silent host is given up
    # The GPUs that Ray has made visible to it alone, and may be made visible to others.
    gpus: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A job: who has which rank, and what every rank is told."""

    order: list[int]  # the workers by rank, as they were reported
    places: list[dict[str, str]]  # the variables of each rank alone
    common: dict[str, str]  # the variables of all
    address: str | None  # where the coordinator listens; None: a worker for itself
    first_of_host: list[int]  # the first rank of each host


def plan(reports: Sequence[Report], servers: int | None) -> Plan:
    """Ranks follow each other on a host. Without a number of servers each host has one, if there are several.

    Raises:
        ValueError: several hosts need a server
        RuntimeError: the others would not reach the first host
    """
    hosts: dict[str, list[int]] = {}
    for index, report in enumerate(reports):
        hosts.setdefault(report.host, []).append(index)
    order = [index for members in hosts.values() for index in members]
    if servers is None:
        servers = len(hosts) if len(hosts) > 1 else 0
    if servers == 0 and len(hosts) > 1:
        raise ValueError(f"num_servers is 0; workers on {len(hosts)} hosts need at least one server")
    common = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": str(len(hosts)), "DMLC_NUM_SERVER": str(servers)}
    address = None
    if len(order) > 1 or servers:
        groups = list(hosts.values())
        others = [reports[members[0]].networks for members in groups[1:]]
        address = _meeting_address(reports[order[0]], others) if others or not servers else None
        # Servers may be on hosts without workers, which loopback does not reach.
        if address is None:
            own = reports[order[0]].networks
            address = own[0].partition("/")[0] if own else "127.0.0.1"
        common["BYTEPS_JOB_ID"] = f"ray-{secrets.token_hex(6)}"
        common.update(token_variables(secrets.token_hex(32)))
        if len(hosts) > 1 or servers:
            common.update(reports[order[0]].silence)
        if servers and len(hosts) == 1:
            common["BYTEPS_FORCE_DISTRIBUTED"] = "1"
    places = []
    first = []
    for number, members in enumerate(hosts.values()):
        first.append(len(places))
        gpus = _gpus_of_host([reports[index].gpus for index in members])
        for local_rank in range(len(members)):
            place = {
                "DMLC_WORKER_ID": str(number),
                "BYTEPS_LOCAL_RANK": str(local_rank),
                "BYTEPS_LOCAL_SIZE": str(len(members)),
            }
            if gpus:
                place["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
            places.append(place)
    return Plan(order, places, common, address, first)


def _meeting_address(first: Report, others: Sequence[Sequence[str]]) -> str:
    """At the host of the first worker, which need not be the driver's."""
    name = None if first.host == this_host() else first.host.partition(" ")[0]
    try:
        return meeting_address(first.networks, others, host=name)
    except LaunchError as error:
        raise RuntimeError(str(error)) from None


def _gpus_of_host(by_worker: Sequence[Sequence[str]]) -> list[str]:
    """The GPUs of all workers of a host: the first one of each, by local rank, then the second ones, so that the local
    rank is the number of a worker's own. None where a name is there twice: containers of one host may each have another
    GPU of that name, which the others cannot see."""
    joined = [gpu for nth in itertools.zip_longest(*by_worker) for gpu in nth if gpu is not None]
    return joined if len(set(joined)) == len(joined) else []
