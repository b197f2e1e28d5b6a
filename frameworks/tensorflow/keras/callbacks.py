"""The callbacks of byteps.keras for tf.keras, which is Keras 3 or tf_keras."""

from byteps.keras.callbacks import callbacks_of

import tensorflow as tf

_OF_TF_KERAS = callbacks_of(tf.keras)
BroadcastGlobalVariablesCallback = _OF_TF_KERAS.BroadcastGlobalVariablesCallback
MetricAverageCallback = _OF_TF_KERAS.MetricAverageCallback
AverageStatisticsCallback = _OF_TF_KERAS.AverageStatisticsCallback
LearningRateScheduleCallback = _OF_TF_KERAS.LearningRateScheduleCallback
LearningRateWarmupCallback = _OF_TF_KERAS.LearningRateWarmupCallback
BestModelCheckpoint = _OF_TF_KERAS.BestModelCheckpoint
