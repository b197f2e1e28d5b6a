"""Stands in for horovod.tensorflow.elastic."""

from byteps.elastic import ObjectState, State, run
from byteps.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
