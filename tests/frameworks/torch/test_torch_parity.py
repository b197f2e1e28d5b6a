"""Names, arguments and defaults of horovod.torch 0.28.1 and byteps.torch 0.2.5, as their users call them."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from signatures import BASICS, REQUIRED, check

torch = pytest.importorskip("torch")

import byteps.torch
from byteps.torch import Average, Compression, global_process_set

PS = ("process_set", global_process_set)
_NAME = ("name", None)
_SCALE = [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
_REDUCE = [("average", None), _NAME, ("op", None), *_SCALE, PS]
_COMPRESSED = [("average", None), _NAME, ("compression", Compression.none), ("op", None), *_SCALE, PS]
T, TS = ("tensor", REQUIRED), ("tensors", REQUIRED)
_ROOT = ("root_rank", REQUIRED)
_SPLITS = ("splits", None)
_OP = ("op", Average)

HOROVOD: dict[str, list[tuple[str, Any]] | None] = {
    **BASICS,
    "HorovodInternalError": None,
    "Compression": None,
    "allreduce": [T, *_COMPRESSED],
    "allreduce_async": [T, *_REDUCE],
    "allreduce_": [T, *_REDUCE],
    "allreduce_async_": [T, *_REDUCE],
    "grouped_allreduce": [TS, *_COMPRESSED],
    "grouped_allreduce_async": [TS, *_REDUCE],
    "grouped_allreduce_": [TS, *_REDUCE],
    "grouped_allreduce_async_": [TS, *_REDUCE],
    "broadcast": [T, _ROOT, _NAME, PS],
    "broadcast_async": [T, _ROOT, _NAME, PS],
    "broadcast_": [T, _ROOT, _NAME, PS],
    "broadcast_async_": [T, _ROOT, _NAME, PS],
    "allgather": [T, _NAME, PS],
    "allgather_async": [T, _NAME, PS],
    "grouped_allgather": [TS, _NAME, PS],
    "grouped_allgather_async": [TS, _NAME, PS],
    "alltoall": [T, _SPLITS, _NAME, PS],
    "alltoall_async": [T, _SPLITS, _NAME, PS],
    "reducescatter": [T, _NAME, ("compression", Compression.none), _OP, PS, *_SCALE],
    "reducescatter_async": [T, _NAME, _OP, PS, *_SCALE],
    "grouped_reducescatter": [TS, _NAME, ("compression", Compression.none), _OP, PS, *_SCALE],
    "grouped_reducescatter_async": [TS, _NAME, _OP, PS, *_SCALE],
    "allgather_object": [("obj", REQUIRED), _NAME],
    "sparse_allreduce_async": [T, _NAME, ("op", REQUIRED), PS],
    "SyncBatchNorm": [
        ("num_features", REQUIRED),
        ("eps", 1e-5),
        ("momentum", 0.1),
        ("affine", True),
        ("track_running_stats", True),
    ],
    "join": [("device", -1)],
    "barrier": [PS],
    "poll": [("handle", REQUIRED)],
    "synchronize": [("handle", REQUIRED)],
    "broadcast_parameters": [("params", REQUIRED), _ROOT],
    "broadcast_object": [("obj", REQUIRED), ("root_rank", 0), _NAME, PS],
    "DistributedOptimizer": [
        ("optimizer", REQUIRED),
        ("named_parameters", None),
        ("compression", Compression.none),
        ("backward_passes_per_step", 1),
        ("op", Average),
        ("gradient_predivide_factor", 1.0),
        ("num_groups", 0),
        ("groups", None),
        ("sparse_as_dense", False),
        PS,
    ],
    "elastic": None,
}

_PUSH = [("average", True), _NAME, ("version", 0), ("priority", 0)]
BYTEPS: dict[str, dict[str, list[tuple[str, Any]] | None]] = {
    "byteps.torch": {
        "init": [("lazy", True)],
        **{name: [] for name in ("shutdown", "suspend", "size", "local_size", "rank", "local_rank")},
        "resume": [("num_workers", REQUIRED), ("num_servers", REQUIRED), ("global_rank", REQUIRED), ("context", None)],
        "push_pull": [T, *_PUSH, ("compression", Compression.none)],
        "byteps_push_pull": [T, *_PUSH],
        "declare": [("name", REQUIRED)],
        "poll": [("handle", REQUIRED)],
        "synchronize": [("handle", REQUIRED)],
        "Compression": None,
        "DistributedOptimizer": [
            ("optimizer", REQUIRED),
            ("named_parameters", None),
            ("compression", Compression.none),
            ("backward_passes_per_step", 1),
        ],
        "broadcast_parameters": [("params", REQUIRED), _ROOT, ("prefix", "Parameter.")],
        "broadcast_optimizer_state": [("optimizer", REQUIRED), _ROOT, ("prefix", "Parameter.")],
        "broadcast_object": [("obj", REQUIRED), ("root_rank", 0), _NAME],
    },
    "byteps.torch.ops": {
        "push_pull_async": [T, *_PUSH],
        "push_pull_async_inplace": [T, *_PUSH],
        "push_pull_inplace": [T, *_PUSH],
        "push_pull_group_sync_inplace": [T, *_PUSH],
        "byteps_torch_set_num_grads": [("num_grads_", REQUIRED)],
        **dict.fromkeys(("push_pull", "poll", "synchronize", "declare", "init", "shutdown", "suspend", "resume"), None),
        **dict.fromkeys(("size", "local_size", "rank", "local_rank"), None),
    },
    "byteps.torch.compression": {"Compression": None},
    "byteps.torch.parallel": {
        "DistributedDataParallel": [
            ("module", REQUIRED),
            ("device_ids", None),
            ("broadcast_buffers", True),
            ("compression", Compression.none),
        ]
    },
    "byteps.torch.cross_barrier": {
        "CrossBarrier": [
            ("model", REQUIRED),
            ("optimizer", REQUIRED),
            ("named_parameters", None),
            ("compression", Compression.none),
            ("backward_passes_per_step", 1),
            ("num_steps", 10**6),
        ],
        **dict.fromkeys(("init", "shutdown", "size", "local_size", "rank", "local_rank"), None),
        **dict.fromkeys(("broadcast_parameters", "broadcast_optimizer_state", "Compression"), None),
    },
    "byteps.misc.imagenet18": {
        "DistributedOptimizer": [
            ("optimizer", REQUIRED),
            ("named_parameters", None),
            ("compression", Compression.none),
            ("backward_passes_per_step", 1),
            ("half", False),
            ("model", None),
            ("fp16_params", None),
            ("fp32_params", None),
            ("loss_scale", 1024),
        ],
        **dict.fromkeys(("broadcast_parameters", "broadcast_optimizer_state", "push_pull", "init"), None),
    },
    "byteps.common": {"BytePSBasics": None},
    "byteps.__version__": {"VERSION": None, "__version__": None},
}

# Of these the order of arguments differs, because two programs call one function: they are told apart by type, or are
# given by name.
BY_NAME = {"DistributedDataParallel"}


@pytest.mark.parametrize("name", sorted(HOROVOD))
def test_horovod_torch(name: str) -> None:
    module = importlib.import_module("byteps.horovod.torch")
    check(getattr(module, name), HOROVOD[name])
    if name != "init":  # takes BytePS's argument in the first place
        check(getattr(byteps.torch, name), HOROVOD[name])


def test_broadcast_optimizer_state_takes_the_model_third() -> None:
    wanted = [("optimizer", REQUIRED), _ROOT]
    check(byteps.torch.broadcast_optimizer_state, wanted)
    assert inspect.signature(byteps.torch.broadcast_optimizer_state).parameters["model"].default is None


@pytest.mark.parametrize("module", sorted(BYTEPS))
def test_byteps(module: str) -> None:
    found = importlib.import_module(module)
    for name, wanted in BYTEPS[module].items():
        check(getattr(found, name), wanted, by_name=name in BY_NAME)


def test_queries_before_init() -> None:
    hvd = importlib.import_module("byteps.horovod.torch")
    for name in ("size", "rank", "local_size", "local_rank", "cross_size", "cross_rank", "mpi_threads_supported"):
        with pytest.raises(ValueError, match="init"):
            getattr(hvd, name)()


def test_version_is_text_and_a_module() -> None:
    import byteps.__version__ as version
    from byteps.__version__ import VERSION

    assert isinstance(VERSION, tuple) and all(isinstance(number, int) for number in VERSION)
    assert version.VERSION == VERSION
    assert isinstance(byteps.__version__, str)
    assert byteps.__version__ == byteps.torch.__version__ == ".".join(map(str, VERSION))


def test_everything_that_is_exported_is_there() -> None:
    for module in (byteps, byteps.torch, byteps.torch.ops, importlib.import_module("byteps.horovod.torch")):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name), (module, name)


def test_the_server_is_no_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    with pytest.raises(ImportError, match="DMLC_ROLE"):
        importlib.import_module("byteps.server")
