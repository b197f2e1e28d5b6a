"""BytePS on Ray: workers as actors, servers as actors beside them.

    executor = byteps.ray.RayExecutor(num_workers=4)
    executor.start()
    losses = executor.run(train, args=(0.1,))
    executor.shutdown()

In Ray Train: TorchTrainer(train, torch_config=byteps.ray.BytePSConfig(), ...).
"""

from __future__ import annotations

from typing import Any

from byteps.ray.executor import RayExecutor, Settings
from byteps.ray.log import log

__all__ = ["BytePSConfig", "RayExecutor", "Settings", "log"]


def __getattr__(name: str) -> Any:
    # Ray Train and PyTorch are needed for it alone.
    if name == "BytePSConfig":
        from byteps.ray.train import BytePSConfig

        return BytePSConfig
    raise AttributeError(name)
