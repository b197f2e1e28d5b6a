"""Stands in for horovod.common.process_sets."""

from byteps.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
