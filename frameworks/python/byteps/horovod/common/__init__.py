"""Stands in for horovod.common."""
