"""Stands in for horovod.tensorflow.keras.callbacks; see byteps.horovod.keras.callbacks."""

import tensorflow as tf

from byteps.horovod.keras.callbacks import __all__ as __all__
from byteps.horovod.keras.callbacks import in_horovods_order

_OF_TF_KERAS = in_horovods_order(tf.keras)
BroadcastGlobalVariablesCallback = _OF_TF_KERAS.BroadcastGlobalVariablesCallback
MetricAverageCallback = _OF_TF_KERAS.MetricAverageCallback
LearningRateScheduleCallback = _OF_TF_KERAS.LearningRateScheduleCallback
LearningRateWarmupCallback = _OF_TF_KERAS.LearningRateWarmupCallback
BestModelCheckpoint = _OF_TF_KERAS.BestModelCheckpoint
