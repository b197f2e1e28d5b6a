"""Names, arguments and defaults of horovod.torch 0.28.1 and byteps.torch 0.2.5, as their users call them."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import pytest
from signatures import BASICS, REQUIRED, check, check_errors

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

# Attributes of classes and modules, by what they are reached by. What a method is called on is not among its arguments.
_BATCH = [("batch_idx", REQUIRED), ("batch_size", REQUIRED)]
MEMBERS: dict[str, dict[str, list[tuple[str, Any]] | None]] = {
    "Compression": dict.fromkeys(("none", "fp16")),
    "Compression.none": {"compress": [T], "decompress": [T, ("ctx", REQUIRED)]},
    "Compression.fp16": {"compress": [T], "decompress": [T, ("ctx", REQUIRED)]},
    "ProcessSet": {
        "__init__": [("ranks_or_comm", REQUIRED)],
        "process_set_id": None,
        **{name: [] for name in ("size", "rank", "included")},
    },
    "global_process_set": {
        **{name: [] for name in ("size", "rank", "included")},
        **dict.fromkeys(("ranks", "process_set_id")),
    },
    "SyncBatchNorm": {"forward": [("input", REQUIRED)]},
    "elastic": {
        "run": [("func", REQUIRED)],
        "TorchState": [("model", None), ("optimizer", None)],
        "ElasticSampler": [("dataset", REQUIRED), ("shuffle", True), ("seed", 0)],
        **dict.fromkeys(("State", "ObjectState")),
    },
    **{
        f"elastic.{state}": {
            **{name: [] for name in ("commit", "check_host_updates", "save", "restore", "sync", "reset", "on_reset")},
            "register_reset_callbacks": [("callbacks", REQUIRED)],
        }
        for state in ("State", "ObjectState", "TorchState")
    },
    "elastic.ElasticSampler": {
        "set_epoch": [("epoch", REQUIRED)],
        "record_batch": _BATCH,
        "record_indices": [("indices", REQUIRED)],
        "get_indices": _BATCH,
        "state_dict": [],
        "load_state_dict": [("state_dict", REQUIRED)],
        "reset": [],
    },
}

# Those of the optimizer that DistributedOptimizer returns, and of BytePS's wrapper.
OPTIMIZER: dict[str, list[tuple[str, Any]]] = {
    "synchronize": [],
    "skip_synchronize": [],
    "set_backward_passes_per_step": [("passes", REQUIRED)],
    "step": [("closure", None)],
    "zero_grad": [],
    "load_state_dict": [("state_dict", REQUIRED)],
    "state_dict": [],
    "add_param_group": [("param_group", REQUIRED)],
}
WRAPPER: dict[str, list[tuple[str, Any]]] = {"no_sync": [], "synchronize": []}

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


@pytest.mark.parametrize("owner", sorted(MEMBERS))
def test_members(owner: str) -> None:
    for found in (importlib.import_module("byteps.horovod.torch"), byteps.torch):
        for part in owner.split("."):
            found = getattr(found, part)
        for name, wanted in MEMBERS[owner].items():
            member = getattr(found, name)
            if inspect.isclass(found) and inspect.isfunction(inspect.getattr_static(found, name)):
                member = functools.partial(member, found)  # what it is called on
            check(member, wanted)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("compression", "Compression Compressor FP16Compressor NoneCompressor"),
        ("functions", "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters"),
        ("optimizer", "DistributedOptimizer"),
        ("sync_batch_norm", "SyncBatchNorm"),
        ("elastic", "ElasticSampler ObjectState State TorchState run"),
        ("elastic.sampler", "ElasticSampler"),
        ("elastic.state", "TorchState"),
    ],
)
def test_modules_of_horovod(module: str, names: str) -> None:
    found = importlib.import_module(f"byteps.horovod.torch.{module}")
    for name in names.split():
        assert getattr(found, name) is not None


def test_elastic_by_its_module() -> None:
    """As programs of Horovod import it."""
    from byteps.horovod.torch.elastic import ElasticSampler, TorchState, run

    elastic = byteps.torch.elastic
    assert (ElasticSampler, TorchState, run) == (elastic.ElasticSampler, elastic.TorchState, elastic.run)


def test_elastic_state_takes_more_by_name(alone: None) -> None:
    model = torch.nn.Linear(2, 2)
    sampler = byteps.torch.elastic.ElasticSampler(range(6), False, 3)
    state = byteps.torch.elastic.TorchState(model, None, batch=3, sampler=sampler)
    assert (state.model, state.batch, state.sampler) == (model, 3, sampler)
    assert list(sampler) == [0, 1, 2, 3, 4, 5]
    sampler.record_batch(batch_idx=1, batch_size=2)
    state.batch = 4
    state.commit()
    sampler.set_epoch(epoch=1)
    state.batch = 5
    state.restore()
    assert state.batch == 4 and sampler.state_dict() == {"epoch": 0, "processed_indices": {2, 3}}
    assert list(sampler) == [0, 1, 4, 5]


@pytest.mark.parametrize("module", ["byteps.torch", "byteps.horovod.torch"])
def test_members_of_the_optimizer(module: str, alone: None) -> None:
    made = importlib.import_module(module).DistributedOptimizer
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = made(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    for name, wanted in OPTIMIZER.items():
        check(getattr(optimizer, name), wanted)
    assert (optimizer.op, optimizer.backward_passes_per_step) == (Average, 1)
    assert (optimizer.gradient_predivide_factor, optimizer.sparse_as_dense) == (1.0, False)
    assert optimizer.process_set is global_process_set
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


def test_members_of_the_wrapper(alone: None) -> None:
    module = torch.nn.Linear(2, 2)
    wrapped = byteps.torch.parallel.DistributedDataParallel(module, device_ids=None)
    for name, wanted in WRAPPER.items():
        check(getattr(wrapped, name), wanted)
    assert wrapped.module is module
    with wrapped.no_sync():
        wrapped(torch.ones(1, 2)).sum().backward()
    wrapped(torch.ones(1, 2)).sum().backward()
    wrapped.synchronize()
    assert torch.equal(module.weight.grad, torch.full((2, 2), 2.0))


def test_the_wrapper_is_constructed_as_that_of_torch(alone: None) -> None:
    """By position up to where torch itself has added arguments; by name all of them, with the defaults of torch."""
    theirs = list(inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters.values())
    ours = list(inspect.signature(byteps.torch.parallel.DistributedDataParallel).parameters.values())
    names = [each.name for each in theirs]
    last = names.index("static_graph") + 1
    own = [each.name for each in ours[:last]]
    # `init_sync` is of newer versions of torch, and was of BytePS before.
    assert [name for name in own if name in names] == [name for name in names[:last] if name in own]
    for mine, its in zip(ours, theirs):
        if mine.name == its.name and its.name not in ("broadcast_buffers", "bucket_cap_mb"):
            assert mine.default == its.default, mine.name
    module = torch.nn.Linear(2, 2)
    defaults = {each.name: each.default for each in theirs if each.name != "module"}
    wrapped = byteps.torch.parallel.DistributedDataParallel(module, **defaults)
    assert wrapped.broadcast_buffers is True, "also where None is the default"


def test_broadcast_optimizer_state_takes_the_model_third() -> None:
    wanted = [("optimizer", REQUIRED), _ROOT]
    check(byteps.torch.broadcast_optimizer_state, wanted)
    assert inspect.signature(byteps.torch.broadcast_optimizer_state).parameters["model"].default is None


@pytest.mark.parametrize("module", sorted(BYTEPS))
def test_byteps(module: str) -> None:
    found = importlib.import_module(module)
    for name, wanted in BYTEPS[module].items():
        check(getattr(found, name), wanted, by_name=name in BY_NAME)


@pytest.mark.parametrize("module", ["byteps.torch", "byteps.horovod.torch"])
def test_types_of_errors(module: str) -> None:
    check_errors(importlib.import_module(module))


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
