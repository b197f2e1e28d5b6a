"""The cases of test_ray_executor.py: ray_body.py CASE. Prints ALL WELL."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import byteps
import cloudpickle
import ray
from byteps.ray import RayExecutor
from native_push import push_pull_doubles
from ray.cluster_utils import Cluster

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CLUSTER: Any = None


def train(scale: float = 1.0) -> tuple[int, int, int, int, float]:
    byteps.init()
    request, memory = push_pull_doubles("x", [scale * (byteps.rank() + 1)])
    request.wait()
    info = byteps.info()
    byteps.shutdown()
    return info.rank, info.size, info.local_rank, info.num_servers, memory[0]


def forever(fault: str) -> None:
    byteps.init()
    while True:
        request, _ = push_pull_doubles("x", [1.0])
        request.wait()
        if byteps.rank() == 1:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raise":
                raise KeyError("no such data")


def services() -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if b"byteps_server" in words or b"--companion" in words:
                found.append(words.decode())
    return found


def kill_service(variable: bytes) -> None:
    """Every one with this variable."""
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if (
                variable in path.read_bytes().split(b"\0")
                and b"byteps_server" in (path.parent / "cmdline").read_bytes()
            ):
                os.kill(int(path.parent.name), signal.SIGKILL)


def wait_for_no_services() -> None:
    deadline = time.monotonic() + 15
    while services():
        assert time.monotonic() < deadline, services()
        time.sleep(0.05)


def results() -> None:
    executor = RayExecutor(num_workers=2)
    for _ in range(2):  # It may start again.
        executor.start()
        assert executor.run(train, args=(2.0,)) == [(rank, 2, rank, 0, 6.0) for rank in range(2)]
        assert [place[0] for place in ray.get(executor.run_remote(train))] == [0, 1]
        executor.shutdown()
        wait_for_no_services()


def spread() -> None:
    executor = RayExecutor(num_hosts=2, num_workers_per_host=2)
    executor.start()
    found = executor.run(train)
    # Nodes of one machine that share everything but an address are one host.
    assert [place[0] for place in found] == [0, 1, 2, 3] and all(place[4] == 10.0 for place in found), found
    executor.shutdown()


def servers() -> None:
    settings = RayExecutor.create_settings(placement_strategy="SPREAD")
    executor = RayExecutor(settings, num_workers=2, num_servers=2)
    executor.start()
    assert executor.run(train) == [(rank, 2, rank, 2, 3.0) for rank in range(2)]
    executor.shutdown()
    wait_for_no_services()


class Model:
    def __init__(self, base: int, *, step: int) -> None:
        self.base, self.step = base, step


def classes() -> None:
    executor = RayExecutor(num_workers=2)
    executor.start(Model, [1], {"step": 2}, extra_env_vars={"MINE": "yes"})
    assert executor.execute(lambda model: (model.base + model.step, os.environ["MINE"])) == [(3, "yes")] * 2
    assert executor.execute_single(lambda model: model.step) == 2
    executor.shutdown()


def fails(fault: str) -> BaseException:
    executor = RayExecutor(num_workers=2)
    executor.start()
    started = time.monotonic()
    try:
        executor.run(forever, args=(fault,))
    except Exception as error:
        assert time.monotonic() - started < 60
        executor.shutdown()
        wait_for_no_services()
        executor.start()
        assert len(executor.run(train)) == 2
        executor.shutdown()
        return error
    raise AssertionError("it should have failed")


def worker_dies() -> None:
    error = fails("kill")
    assert isinstance(error, ray.exceptions.RayActorError), repr(error)


def exceptions() -> None:
    error = fails("raise")
    assert isinstance(error, KeyError) and "no such data" in str(error), repr(error)


def server_dies() -> None:
    executor = RayExecutor(num_workers=2, num_servers=1)
    executor.start()
    references = executor.run_remote(forever, args=("none",))
    assert not ray.wait(references, timeout=2)[0]
    kill_service(b"DMLC_ROLE=server")
    try:
        ray.get(references, timeout=60)
    except byteps.BytePSError as error:
        assert "server" in str(error), error
    else:
        raise AssertionError("nobody missed the server")
    executor.shutdown()
    wait_for_no_services()


def within() -> float:
    """The seconds that a job has to end when something dies; on a machine that has more to do than cores, more."""
    return 15.0 * max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def dies(kill: Callable[[], None], *said: str) -> None:
    """Two workers and two servers over two nodes; the error names what was killed, and nothing of the job is left."""
    executor = RayExecutor(RayExecutor.create_settings(placement_strategy="SPREAD"), num_workers=2, num_servers=2)
    executor.start()
    references = executor.run_remote(forever, args=("none",))
    assert not ray.wait(references, timeout=2)[0]
    kill()
    died = time.monotonic()
    try:
        for reference in ray.wait(references, num_returns=2, timeout=within())[0]:
            ray.get(reference)
        raise AssertionError(f"nobody missed it within {within():.0f} s")
    except (byteps.BytePSError, ray.exceptions.RayError) as error:
        print(f"told after {time.monotonic() - died:.1f} s: {error}")
        assert any(text in str(error) for text in said), error
    executor.shutdown()
    wait_for_no_services()
    print(f"all gone after {time.monotonic() - died:.1f} s")
    assert time.monotonic() - died < within()


def coordinator_dies() -> None:
    dies(lambda: kill_service(b"DMLC_ROLE=scheduler"), "coordinator")


def node_dies() -> None:
    dies(lambda: CLUSTER.remove_node(CLUSTER.worker_nodes.copy().pop(), allow_graceful=False), "node", "rank ")


def driver_dies() -> None:
    """Its actors, and what is beside them, end."""
    body = "import sys; import ray_body; ray_body.drive(sys.argv[1])"
    driver = subprocess.Popen(
        [sys.executable, "-c", body, CLUSTER.address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parent,
    )
    assert driver.stdout is not None
    while "trains" not in driver.stdout.readline():
        assert driver.poll() is None, "the driver has ended"
    assert services()
    driver.kill()
    assert driver.wait() != 0
    wait_for_no_services()


def drive(address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    executor = RayExecutor(RayExecutor.create_settings(placement_strategy="SPREAD"), num_workers=2, num_servers=1)
    executor.start()
    references = executor.run_remote(forever, args=("none",))
    assert not ray.wait(references, timeout=2)[0]
    print("trains", flush=True)
    ray.get(references)


@ray.remote(num_cpus=1)
def in_a_group() -> list[Any]:
    executor = RayExecutor(num_workers=2)
    executor.start()
    found = executor.run(lambda: (*train()[:2], ray.util.get_current_placement_group().id.hex()))
    executor.shutdown()
    refused(RayExecutor(num_hosts=1).start, ValueError, "num_hosts cannot be kept")
    settings = RayExecutor.create_settings(timeout_s=3)
    refused(RayExecutor(settings, num_workers=3).start, TimeoutError, "the current placement group has")
    assert ray.util.get_current_placement_group() is not None, "it is not ours to remove"
    return found


def current_group() -> None:
    """Within a trial of Ray Tune, say: the workers take its resources, not others."""
    group = ray.util.placement_group([{"CPU": 1.0}] * 3)
    assert group.wait(30)
    where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    found = ray.get(in_a_group.options(scheduling_strategy=where).remote(), timeout=200)
    assert found == [(rank, 2, group.id.hex()) for rank in range(2)], found
    wait_for_no_services()


def refused(make: Any, kind: type, words: str) -> None:
    try:
        make()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"accepted, without {words!r}")


def wrong() -> None:
    refused(RayExecutor, ValueError, "give num_workers")
    refused(lambda: RayExecutor(num_workers=0), ValueError, "num_workers is 0")
    refused(lambda: RayExecutor.create_settings(ssh_identity_file="x"), TypeError, "ssh is not used here")
    refused(lambda: RayExecutor.create_settings(nics=["eth0"]), TypeError, "DMLC_INTERFACE")
    for name in ("min_workers", "max_workers", "reset_limit", "elastic_timeout"):
        refused(lambda name=name: RayExecutor(num_workers=1, **{name: 2}), ValueError, f"does not take {name}")
    refused(lambda: RayExecutor(num_workers=1, cpus=2), TypeError, "has no cpus")
    refused(lambda: RayExecutor(num_workers=1).run(train), RuntimeError, "has not started")
    settings = RayExecutor.create_settings(placement_group_timeout_s=2)
    refused(RayExecutor(settings, num_workers=100).start, TimeoutError, "the cluster has not")


def loop(config: dict[str, Any]) -> None:
    import byteps.torch as bps
    import ray.train
    import torch

    bps.init()
    context = ray.train.get_context()
    assert bps.rank() == context.get_world_rank() and bps.size() == context.get_world_size()
    total = bps.push_pull(torch.ones(3) * (bps.rank() + 1), average=False, name="x")
    if bps.rank() == 0 and not os.path.exists(config["mark"]):  # noqa: PTH110
        open(config["mark"], "w").close()
        os._exit(7)
    assert total[0].item() == 3.0
    bps.shutdown()


def train_loop() -> None:
    import tempfile

    from byteps.ray import BytePSConfig
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1))
        trainer = TorchTrainer(
            loop,
            train_loop_config={"mark": f"{folder}/failed"},
            torch_config=BytePSConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=config,
        )
        result = trainer.fit()
        assert result.error is None, result.error


def main() -> None:
    global CLUSTER
    cluster = CLUSTER = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "10.99.0.1", "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2, node_ip_address="10.99.0.2", wait=False)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=True)
    case = sys.argv[1]
    {"train": train_loop}.get(case, globals().get(case))()
    ray.shutdown()
    cluster.shutdown()
    print("ALL WELL")


if __name__ == "__main__":
    main()
