"""Stands in for horovod.torch.elastic."""

from byteps.torch.elastic import ElasticSampler, ObjectState, State, TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
