"""What a function tells the driver while it runs: log() in a worker, callbacks of run() and execute() in the driver.

def train():
    byteps.ray.log({"epoch": 1, "loss": 0.1})

executor.run(train, callbacks=[print])

In between is an actor on the driver's node: no other node takes it along. Should it be killed all the same, training
goes on, and a warning says that what is logged is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_LOG = logging.getLogger("byteps.ray")
_TARGET: list[Queue] = []  # of this process: the driver's, while one has callbacks


def log(values: Mapping[str, Any]) -> None:
    """On rank 0: calls each callback of the driver with these values, soon. On other ranks, or where the driver has no
    callbacks, it does nothing."""
    for queue in list(_TARGET):
        try:
            queue.put(dict(values))
        except RayActorError as error:
            _LOG.warning("the driver hears nothing of byteps.ray.log() any more: %s", error)
            set_target(None)


def set_target(queue: Queue | None) -> None:
    """Where log() of this process goes; None: nowhere."""
    _TARGET[:] = [] if queue is None else [queue]


class Callbacks:
    """In the driver. close() ends what it has started."""

    def __init__(self, callbacks: Sequence[Callable[[dict[str, Any]], Any]]) -> None:
        self._callbacks = list(callbacks)
        self._lost = False
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def deliver(self) -> None:
        """Calls them with what has come by now; their errors are raised."""
        for values in self._taken():
            for callback in self._callbacks:
                callback(values)

    def _taken(self) -> list[dict[str, Any]]:
        if self._lost:
            return []
        try:
            waiting = self.queue.qsize()
            return self.queue.get_nowait_batch(waiting) if waiting else []
        except RayActorError as error:
            self._lost = True
            _LOG.warning("what byteps.ray.log() is told from now on is lost: %s", error)
            return []

    def close(self) -> None:
        """Nothing comes any more."""
        self.queue.shutdown(force=True)
