"""Stands in for horovod.mxnet.compression."""

from byteps.mxnet.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
