"""Names, arguments and defaults of byteps.tensorflow, byteps.keras and byteps.tensorflow.keras 0.2.5."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from installed import framework
from signatures import REQUIRED, check

framework("tensorflow")
framework("keras")

import byteps.keras
from byteps.reduce_op import Average
from byteps.tensorflow.compression import Compression

Wanted = dict[str, "list[tuple[str, Any]] | None"]

_NAME, _ROOT, _SCOPE = ("name", None), ("root_rank", REQUIRED), ("scope", "")
_DEVICES = [("device_dense", ""), ("device_sparse", "")]
_GRADIENTS = [*_DEVICES, ("compression", Compression.none), ("sparse_as_dense", False)]
_OF_KERAS = ("compression", byteps.keras.Compression.none)

BASICS: Wanted = {
    "init": [("lazy", True)],
    **{name: [] for name in ("shutdown", "size", "local_size", "rank", "local_rank")},
    "Compression": None,
}
TENSORFLOW: Wanted = {
    **BASICS,
    **dict.fromkeys(("Average", "Sum", "Adasum"), None),
    "suspend": [],
    "resume": [
        ("num_workers", REQUIRED),
        ("num_servers", REQUIRED),
        ("global_rank", REQUIRED),
        ("context", None),
    ],
    "get_pushpull_speed": [],
    "push_pull": [
        ("tensor", REQUIRED),
        _SCOPE,
        ("average", None),
        *_DEVICES,
        ("compression", Compression.none),
        ("op", None),
        ("enable_async", False),
    ],
    "broadcast": [("tensor", REQUIRED), _ROOT, _SCOPE, _NAME, ("is_variable", True)],
    "broadcast_global_variables": [_ROOT],
    "broadcast_variables": [("variables", REQUIRED), _ROOT, _SCOPE],
    "BroadcastGlobalVariablesHook": [_ROOT, ("device", "")],
    "DistributedOptimizer": [
        ("optimizer", REQUIRED),
        _NAME,
        ("use_locking", False),
        *_GRADIENTS,
        ("backward_passes_per_step", 1),
        ("op", Average),
    ],
    "DistributedGradientTape": [("gradtape", REQUIRED), *_GRADIENTS, ("op", Average)],
}
KERAS: Wanted = {
    **BASICS,
    "DistributedOptimizer": [("optimizer", REQUIRED), _NAME, *_DEVICES, _OF_KERAS, ("sparse_as_dense", False)],
    "broadcast_global_variables": [_ROOT],
    "push_pull": [("value", REQUIRED), _NAME, ("average", True)],
    "broadcast": [("value", REQUIRED), _ROOT, _NAME],
    "load_model": [("filepath", REQUIRED), ("custom_optimizers", None), ("custom_objects", None), _OF_KERAS],
}
CALLBACKS: Wanted = {
    "BroadcastGlobalVariablesCallback": [_ROOT, ("device", "")],
    "MetricAverageCallback": [("device", "")],
    "LearningRateScheduleCallback": [
        ("multiplier", REQUIRED),
        ("start_epoch", 0),
        ("end_epoch", None),
        ("staircase", True),
        ("momentum_correction", True),
        ("steps_per_epoch", None),
        ("initial_lr", None),
    ],
    "LearningRateWarmupCallback": [
        ("warmup_epochs", 5),
        ("momentum_correction", True),
        ("steps_per_epoch", None),
        ("verbose", 0),
        ("initial_lr", None),
    ],
}
MODULES: dict[str, Wanted] = {
    "tensorflow": TENSORFLOW,
    "tensorflow.distribute": {"MirroredStrategy": [("devices", None), ("cross_device_ops", None)]},
}
for _keras in ("keras", "tensorflow.keras"):
    MODULES.update({_keras: KERAS, f"{_keras}.callbacks": CALLBACKS})


@pytest.mark.parametrize("name", sorted(MODULES))
def test_names_and_arguments(name: str) -> None:
    module = importlib.import_module(f"byteps.{name}")
    for function, wanted in MODULES[name].items():
        check(getattr(module, function), wanted)
    for exported in getattr(module, "__all__", ()):
        assert hasattr(module, exported), exported
