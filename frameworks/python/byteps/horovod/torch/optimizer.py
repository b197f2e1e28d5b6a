"""Stands in for horovod.torch.optimizer."""

from byteps.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
