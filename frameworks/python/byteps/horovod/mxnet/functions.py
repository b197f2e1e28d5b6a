"""Stands in for horovod.mxnet.functions."""

from byteps.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
