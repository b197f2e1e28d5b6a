"""A backend of Ray Train: the workers of a TorchTrainer find each other by BytePS, too.

    TorchTrainer(train, torch_config=BytePSConfig(), scaling_config=ScalingConfig(num_workers=4)).fit()

torch.distributed is set up as by TorchConfig. The function calls byteps.torch.init() itself. After a failure Ray starts
the workers again, and this with them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from byteps.ray.actors import report, set_variables, start_services
from byteps.ray.places import plan

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend


@dataclasses.dataclass
class BytePSConfig(TorchConfig):
    """As TorchConfig, and what BytePS needs.

    Attributes:
        num_servers: servers in all, spread over the nodes of workers; None: one a node, if there are several
    """

    num_servers: int | None = None

    @property
    def backend_cls(self) -> type:
        """For Ray Train."""
        return _BytePSBackend


class _BytePSBackend(_TorchBackend):
    """Places the workers before they train."""

    def on_start(self, worker_group: Any, backend_config: BytePSConfig) -> None:
        super().on_start(worker_group, backend_config)
        count = len(worker_group)
        job = plan([worker_group.execute_single(rank, report) for rank in range(count)], backend_config.num_servers)
        common = dict(job.common)
        if job.address is not None:
            port = worker_group.execute_single(job.order[0], start_services, job.address, [], common, 0)
            common["DMLC_PS_ROOT_URI"], common["DMLC_PS_ROOT_PORT"] = job.address, str(port)
        in_order = job.order == list(range(count))
        for rank, index in enumerate(job.order):
            place = dict(job.places[rank])
            if not in_order:  # Ray's ranks are the ones that the function sees.
                place["BYTEPS_GLOBAL_RANK"] = str(index)
            worker_group.execute_single(index, set_variables, {**common, **place})
        for number in range(int(common["DMLC_NUM_SERVER"])):
            first = job.order[job.first_of_host[number % len(job.first_of_host)]]
            worker_group.execute_single(first, start_services, None, [number], common, 1)
