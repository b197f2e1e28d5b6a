"""byteps.torch.parallel: DistributedDataParallel."""

from byteps.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
