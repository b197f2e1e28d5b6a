"""Stands in for horovod.torch.elastic.state."""

from byteps.torch.elastic.state import TorchState

__all__ = ["TorchState"]
