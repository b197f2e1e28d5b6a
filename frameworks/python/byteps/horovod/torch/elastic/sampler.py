"""Stands in for horovod.torch.elastic.sampler."""

from byteps.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
