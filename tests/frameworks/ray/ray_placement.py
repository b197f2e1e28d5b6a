"""The driver of test_ray_placement.py: ray_placement.py ADDRESS. Two nodes of two CPUs each. Prints ALL WELL."""

from __future__ import annotations

import sys
import time
from typing import Any

import byteps
import cloudpickle
import ray
from byteps.ray import RayExecutor
from native_push import push_pull_doubles

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def place() -> tuple[str, int, int, int, float]:
    """Address of the node, rank, local rank, number of servers, and a sum."""
    byteps.init()
    request, memory = push_pull_doubles("x", [1.0])
    request.wait()
    info = byteps.info()
    byteps.shutdown()
    return ray.util.get_node_ip_address(), info.rank, info.local_rank, info.num_servers, memory[0]


def placed(strategy: str, **arguments: Any) -> list[tuple[str, int, int, int, float]]:
    executor = RayExecutor(RayExecutor.create_settings(placement_strategy=strategy), **arguments)
    executor.start()
    found = executor.run(place)
    executor.shutdown()
    assert [each[1] for each in found] == list(range(len(found))), found
    wait_until_free()
    return found


def wait_until_free() -> None:
    """Ray frees what an ended actor had after a moment."""
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 4.0:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


def main() -> None:
    ray.init(address=sys.argv[1])
    for strategy in ("PACK", "STRICT_PACK"):
        found = placed(strategy, num_workers=2)
        assert len({each[0] for each in found}) == 1, found
        assert [each[2:] for each in found] == [(0, 0, 2.0), (1, 0, 2.0)], found
    for strategy in ("SPREAD", "STRICT_SPREAD"):
        found = placed(strategy, num_workers=2)
        assert len({each[0] for each in found}) == 2, found
        # A node has a server beside its first worker.
        assert [each[2:] for each in found] == [(0, 2, 2.0)] * 2, found
    found = placed("PACK", num_hosts=2, num_workers_per_host=2)
    assert found[0][0] == found[1][0] != found[2][0] == found[3][0], found
    assert [each[2:] for each in found] == [(0, 2, 4.0), (1, 2, 4.0)] * 2, found
    for servers in (1, 2):  # PACK is where the servers go: the workers are on nodes of their own nevertheless.
        found = placed("PACK", num_hosts=2, num_servers=servers)
        assert len({each[0] for each in found}) == 2, found
        assert [each[2:] for each in found] == [(0, servers, 2.0)] * 2, found
    # Room for the workers alone: the group of the workers is not left behind.
    settings = RayExecutor.create_settings(placement_group_timeout_s=5)
    crowded = RayExecutor(settings, num_hosts=2, num_workers_per_host=2, num_servers=1)
    try:
        crowded.start()
    except TimeoutError as error:
        assert "the cluster has not [{'CPU': 1.0}] (PACK) within 5 s" in str(error), error
    else:
        raise AssertionError("no CPU is left for the server")
    wait_until_free()
    print("ALL WELL", flush=True)


if __name__ == "__main__":
    main()
