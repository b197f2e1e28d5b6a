"""The cases of test_ray_executor.py: ray_body.py CASE ... Prints ALL WELL."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import time
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
    # A job of Ray makes up its own secret: a file counts neither for the workers nor for what is beside them.
    executor.start(extra_env_vars={"BYTEPS_JOB_TOKEN_FILE": "/no/such/token"})
    assert executor.run(train) == [(rank, 2, rank, 2, 3.0) for rank in range(2)]
    executor.shutdown()
    wait_for_no_services()


def gpus() -> None:
    """Every worker sees those of all workers of its host; the local rank is the number of its own."""

    def seen() -> tuple[int, str, list[int]]:
        byteps.init()
        local_rank = byteps.local_rank()
        byteps.shutdown()
        return local_rank, os.environ["CUDA_VISIBLE_DEVICES"], ray.get_gpu_ids()

    CLUSTER.add_node(num_cpus=2, num_gpus=2, node_ip_address="10.99.0.3")
    CLUSTER.wait_for_nodes()
    executor = RayExecutor(num_workers=2, use_gpu=True)
    executor.start()
    found = executor.run(seen)
    executor.shutdown()
    assert [local_rank for local_rank, _, _ in found] == [0, 1], found
    assert sorted(gpus[0] for _, _, gpus in found) == [0, 1], found
    assert {visible for _, visible, _ in found} == {",".join(str(gpus[0]) for _, _, gpus in found)}, found


def logs() -> None:
    """What rank 0 logs, in order, while the functions run: run() and execute() both."""

    def body(model: Any = None) -> None:
        del model
        from byteps.ray import log

        byteps.init()
        for step in range(3):
            log({"rank": byteps.rank(), "step": step})
        byteps.shutdown()

    executor = RayExecutor(num_workers=2)
    executor.start(Model, [1], {"step": 2})
    expected = [{"rank": 0, "step": step} for step in range(3)]
    for call in (executor.run, executor.execute):
        heard: list[Any] = []
        call(body, callbacks=[heard.append])
        assert heard == expected, heard
        call(body)  # nobody listens
        assert heard == expected, heard
    executor.shutdown()


def log_queue_dies() -> None:
    """It is on the driver's node, so that no lost node takes it along; when it is killed, training goes on."""
    from byteps.ray import executor as module

    made: list[Any] = []

    class Kept(module.Callbacks):
        def __init__(self, callbacks: Any) -> None:
            super().__init__(callbacks)
            made.append(self)

    def kill_it(values: Any) -> None:
        if values["step"] == 0:
            actor = made[-1].queue.actor
            where = ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
            assert where == ray.get_runtime_context().get_node_id(), where
            ray.kill(actor)

    def body() -> int:
        from byteps.ray import log

        byteps.init()
        for step in range(20):
            time.sleep(0.1)
            log({"step": step})
        rank = byteps.rank()
        byteps.shutdown()
        return rank

    module.Callbacks = Kept
    executor = RayExecutor(num_workers=2)
    executor.start()
    assert executor.run(body, callbacks=[kill_it]) == [0, 1]
    executor.shutdown()


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
    try:
        executor.run(forever, args=(fault,))
    except Exception as error:
        executor.shutdown()
        wait_for_no_services()
        executor.start()
        assert executor.run(train, args=(2.0,)) == [(rank, 2, rank, 0, 6.0) for rank in range(2)]
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


@ray.remote(num_cpus=1)
def in_a_group() -> list[Any]:
    executor = RayExecutor(num_workers=2)
    executor.start()
    found = executor.run(lambda: (*train()[:2], ray.util.get_current_placement_group().id.hex()))
    executor.shutdown()
    refused(RayExecutor(num_hosts=1).start, ValueError, "num_hosts cannot be kept")
    settings = RayExecutor.create_settings(timeout_s=3)
    # A task that waits lends its CPU: the group has room for three.
    refused(RayExecutor(settings, num_workers=4).start, TimeoutError, "the current placement group has")
    with_server = RayExecutor(num_workers=1, num_servers=1)
    with_server.start()
    assert with_server.run(lambda: train()[:2]) == [(0, 1)]
    with_server.shutdown()
    # Room for the workers, and for one server at most.
    crowded = RayExecutor(RayExecutor.create_settings(timeout_s=20), num_workers=2, num_servers=2)
    refused(crowded.start, TimeoutError, "not all of 2 servers with {'CPU': 1} run within 20 s; the current placement")
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
    began = time.monotonic()
    cluster = CLUSTER = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "10.99.0.1", "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2, node_ip_address="10.99.0.2", wait=False)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=True)
    for case in sys.argv[1:]:
        {"train": train_loop}.get(case, globals().get(case))()
        print(f"{case}: well after {time.monotonic() - began:.0f} s", flush=True)
    ray.shutdown()
    cluster.shutdown()
    print("ALL WELL")


if __name__ == "__main__":
    main()
