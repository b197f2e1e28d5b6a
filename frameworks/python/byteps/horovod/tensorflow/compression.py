"""Stands in for horovod.tensorflow.compression."""

from byteps.tensorflow.compression import Compression

__all__ = ["Compression"]
