"""Names, arguments and defaults of horovod.tensorflow, horovod.keras and horovod.tensorflow.keras 0.28.1."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from installed import framework
from signatures import BASICS, REQUIRED, check, check_errors

tf = framework("tensorflow")
framework("keras")

import byteps.keras
from byteps.keras.gradients import Options
from byteps.keras.optimizer import Settings
from byteps.process_set import global_process_set
from byteps.reduce_op import Average
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import Reduction

Wanted = dict[str, "list[tuple[str, Any]] | None"]

PS = ("process_set", global_process_set)
_NAME, _IGNORE = ("name", None), ("ignore_name_scope", False)
_ROOT, _SCALE = ("root_rank", REQUIRED), [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
_DEVICES = [("device_dense", ""), ("device_sparse", "")]
_UP_TO_SET = [("num_groups", 0), ("groups", None), PS]
_SCALE_LOCAL = ("scale_local_gradients", True)
_GROUPS, _PARTIAL = [*_UP_TO_SET, _SCALE_LOCAL], [*_UP_TO_SET, ("local_layers", None), _SCALE_LOCAL]
T, TS, C = ("tensor", REQUIRED), ("tensors", REQUIRED), ("compression", Compression.none)
_REDUCE = [("average", None), *_DEVICES, C, ("op", None), *_SCALE, _NAME, PS, _IGNORE]
_SCATTER = [("device_dense", ""), C, ("op", Average), _NAME, PS, _IGNORE, *_SCALE]
_OBJECT = [("root_rank", 0), ("session", None), _NAME, PS]
_TAPE = [
    ("gradtape", REQUIRED),
    *_DEVICES,
    C,
    ("sparse_as_dense", False),
    ("op", Average),
    ("gradient_predivide_factor", 1.0),
]
_RUN = [("func", REQUIRED)]

TENSORFLOW: Wanted = {
    **BASICS,
    "Compression": None,
    "allreduce": [T, *_REDUCE],
    "grouped_allreduce": [TS, *_REDUCE[:-3], PS, _IGNORE, _NAME],
    "allgather": [T, _NAME, _IGNORE, PS],
    "grouped_allgather": [TS, _NAME, _IGNORE, PS],
    "broadcast": [T, _ROOT, _NAME, _IGNORE, PS],
    "broadcast_": [("variables", REQUIRED), _ROOT, _NAME, PS],
    "alltoall": [T, ("splits", None), _NAME, _IGNORE, PS],
    "reducescatter": [T, *_SCATTER],
    "grouped_reducescatter": [TS, *_SCATTER[:3], PS, *_SCALE],
    "size_op": [("process_set_id", 0), _NAME],
    "rank_op": [_NAME],
    "local_rank_op": [_NAME],
    "local_size_op": [_NAME],
    "process_set_included_op": [("process_set_id", 0), _NAME],
    "join": [],
    "broadcast_variables": [("variables", REQUIRED), _ROOT, PS, ("inplace", False)],
    "broadcast_object": [("obj", REQUIRED), *_OBJECT],
    "broadcast_object_fn": _OBJECT,
    "allgather_object": [("obj", REQUIRED), ("session", None), _NAME, PS],
    "broadcast_global_variables": [_ROOT],
    "BroadcastGlobalVariablesHook": [_ROOT, ("device", "")],
    "DistributedOptimizer": [
        ("optimizer", REQUIRED),
        _NAME,
        ("use_locking", False),
        *_DEVICES,
        C,
        ("sparse_as_dense", False),
        ("backward_passes_per_step", 1),
        ("op", Average),
        ("gradient_predivide_factor", 1.0),
        ("average_aggregated_gradients", False),
        *_GROUPS,
    ],
    "DistributedGradientTape": [*_TAPE, *_GROUPS],
    "PartialDistributedGradientTape": [*_TAPE, *_PARTIAL],
    "SyncBatchNormalization": [("fused", False)],
    "elastic": None,
}

_OF_KERAS = ("compression", byteps.keras.Compression.none)
_OPTIMIZER = [
    ("optimizer", REQUIRED),
    _NAME,
    *_DEVICES,
    _OF_KERAS,
    ("sparse_as_dense", False),
    ("gradient_predivide_factor", 1.0),
    ("op", Average),
    ("backward_passes_per_step", 1),
    ("average_aggregated_gradients", False),
]
KERAS: Wanted = {
    **BASICS,
    "Compression": None,
    "DistributedOptimizer": [*_OPTIMIZER, *_GROUPS],
    "PartialDistributedOptimizer": [*_OPTIMIZER, *_PARTIAL],
    "allreduce": [("value", REQUIRED), _NAME, ("average", None), *_SCALE, ("op", None), _OF_KERAS],
    "allgather": [("value", REQUIRED), _NAME],
    "broadcast": [("value", REQUIRED), _ROOT, _NAME],
    "reducescatter": [("value", REQUIRED), _NAME, ("op", Average)],
    "load_model": [
        ("filepath", REQUIRED),
        ("custom_optimizers", None),
        ("custom_objects", None),
        _OF_KERAS,
        ("legacy_opts", False),
    ],
    "broadcast_global_variables": [_ROOT],
}
CALLBACKS: Wanted = {
    "BroadcastGlobalVariablesCallback": [_ROOT, ("device", ""), ("local_variables", None)],
    "MetricAverageCallback": [("device", "")],
    "LearningRateScheduleCallback": [
        ("initial_lr", REQUIRED),
        ("multiplier", REQUIRED),
        ("start_epoch", 0),
        ("end_epoch", None),
        ("staircase", True),
        ("momentum_correction", True),
        ("steps_per_epoch", None),
    ],
    "LearningRateWarmupCallback": [
        ("initial_lr", REQUIRED),
        ("warmup_epochs", 5),
        ("momentum_correction", True),
        ("steps_per_epoch", None),
        ("verbose", 0),
    ],
    "BestModelCheckpoint": [
        ("monitor", "val_loss"),
        ("verbose", 0),
        ("save_weights_only", False),
        ("mode", "auto"),
        ("save_freq", "epoch"),
    ],
}
ELASTIC: Wanted = {
    "KerasState": [("model", REQUIRED), ("optimizer", None)],
    "CommitStateCallback": [("state", REQUIRED), ("batches_per_commit", 1)],
    "UpdateBatchStateCallback": [("state", REQUIRED)],
    "UpdateEpochStateCallback": [("state", REQUIRED)],
    "run": _RUN,
}
_STATES: Wanted = {
    "TensorFlowState": [("variables", None), ("session", None)],
    "TensorFlowKerasState": [("model", REQUIRED), ("optimizer", None), ("backend", None)],
    "run": _RUN,
}
MODULES: dict[str, Wanted] = {
    "tensorflow": TENSORFLOW,
    "tensorflow.mpi_ops": {name: TENSORFLOW[name] for name in ("allgather", "broadcast", "alltoall", "init", "size")},
    "tensorflow.functions": {name: TENSORFLOW[name] for name in ("broadcast_variables", "broadcast_object")},
    "tensorflow.compression": {"Compression": None},
    "tensorflow.elastic": _STATES,
}
for _keras in ("keras", "tensorflow.keras"):
    MODULES.update({_keras: KERAS, f"{_keras}.callbacks": CALLBACKS, f"{_keras}.elastic": ELASTIC})


@pytest.mark.parametrize("name", sorted(MODULES))
def test_names_and_arguments(name: str) -> None:
    module = importlib.import_module(f"byteps.horovod.{name}")
    for function, wanted in MODULES[name].items():
        check(getattr(module, function), wanted)
    assert len(set(module.__all__)) == len(module.__all__)
    for exported in module.__all__:
        assert hasattr(module, exported), exported


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow.keras", "keras"])
def test_types_of_errors(name: str) -> None:
    check_errors(importlib.import_module(f"byteps.horovod.{name}"))


def test_all_arguments_of_the_partial_ones_reach_their_place(alone: None) -> None:
    """In Horovod's order: local_layers come before scale_local_gradients."""
    hvd = importlib.import_module("byteps.horovod.tensorflow")
    of_keras = importlib.import_module("byteps.horovod.tensorflow.keras")
    layer = tf.keras.layers.Dense(1)
    layer.build((None, 2))
    local, given = {id(variable) for variable in layer.trainable_variables}, tf.GradientTape()
    everyone = global_process_set  # of one worker, which has no other set
    tape = hvd.PartialDistributedGradientTape(
        given, "/cpu:0", "/device:CPU:0", hvd.Compression.fp16, True, Average, 2.0, 0, 3, everyone, [layer], False
    )
    assert set(tape._bps_local) == local and tape._bps_scale_local is False
    expected = Reduction(Average, Compression.fp16, True, 2.0, "/cpu:0", "/device:CPU:0")
    assert tape._bps_reduction == expected
    sgd, fp16 = tf.keras.optimizers.SGD(0.1), of_keras.Compression.fp16
    optimizer = of_keras.PartialDistributedOptimizer(
        sgd, "mine", "/cpu:0", "/device:CPU:0", fp16, True, 2.0, Average, 2, True, 0, 3, everyone, [layer], False
    )
    options = Options(Average, fp16, True, 2.0, "/cpu:0", "/device:CPU:0")
    assert optimizer._bps_settings == Settings("mine", options, 2, True, False)
    assert set(optimizer._bps_local) == local
    # What is refused has reached its place.
    for wrong, message in (({"num_groups": -1}, "num_groups"), ({"groups": -1}, "groups"), ({"process_set": 3}, "set")):
        with pytest.raises((TypeError, ValueError), match=f"{message} is"):
            hvd.PartialDistributedGradientTape(given, **wrong)
        with pytest.raises((TypeError, ValueError), match=f"{message} is"):
            of_keras.PartialDistributedOptimizer(tf.keras.optimizers.SGD(), **wrong)


def test_arguments_in_the_order_of_horovod_reach_their_place() -> None:
    hvd = importlib.import_module("byteps.horovod.tensorflow.keras")
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, 2.0, 3, 7)
    assert (schedule.initial_lr, schedule.multiplier(1), schedule.start_epoch, schedule.end_epoch) == (0.5, 2, 3, 7)
    with pytest.raises(NotImplementedError, match="legacy_opts"):
        hvd.load_model("model.keras", legacy_opts=True)
