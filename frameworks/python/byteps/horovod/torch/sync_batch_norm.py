"""Stands in for horovod.torch.sync_batch_norm."""

from byteps.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
