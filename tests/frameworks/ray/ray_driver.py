"""The driver of test_ray_kill_matrix.py: ray_driver.py ADDRESS. Two workers and two servers over two nodes train for
ever; prints "trains" when they do."""

from __future__ import annotations

import sys
import time

import byteps
import cloudpickle
import ray
from byteps.ray import RayExecutor
from native_push import push_pull_doubles

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def once() -> None:
    byteps.init()
    push_pull_doubles("x", [1.0])[0].wait()


def forever() -> None:
    while True:
        time.sleep(0.02)
        push_pull_doubles("x", [1.0])[0].wait()


def main() -> None:
    ray.init(address=sys.argv[1])
    settings = RayExecutor.create_settings(placement_strategy="SPREAD")
    executor = RayExecutor(settings, num_workers=2, num_servers=2)
    executor.start()
    executor.run(once)
    print("trains", flush=True)
    executor.run(forever)


if __name__ == "__main__":
    main()
