"""Horovod's words over several workers: values, names, handles, gradients, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from jobs import Outcomes
from torch import nn

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def _of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every dtype holds, and whose sums it holds."""
    return (torch.arange(-20, 21) if dtype.is_signed else torch.arange(41)).mul(rank + 1).remainder(30).to(dtype)


def _values() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*FLOATS, *INTEGERS]:
        mine = _of(rank, dtype)
        inputs = torch.stack([_of(other, dtype).double() for other in range(size)])
        wanted = {
            None: inputs.sum(0) / size,
            hvd.Average: inputs.sum(0) / size,
            hvd.Sum: inputs.sum(0),
            hvd.Min: inputs.amin(0),
            hvd.Max: inputs.amax(0),
        }
        for op, expected in wanted.items():
            if dtype in INTEGERS:
                expected = expected.trunc()
            given = mine.clone()
            assert torch.equal(hvd.allreduce(given, op=op, name="x"), expected.to(dtype)), (dtype, op)
            assert torch.equal(given, mine)
            assert torch.equal(hvd.synchronize(hvd.allreduce_async(given, op=op)), expected.to(dtype))
            assert hvd.allreduce_(given, op=op) is given and torch.equal(given, expected.to(dtype))
            given = mine.clone()
            handle = hvd.allreduce_async_(given, op=op, name="x")
            assert hvd.synchronize(handle) is given and hvd.poll(handle) and torch.equal(given, expected.to(dtype))
    total = sum(range(1, size + 1)) + 1  # not a multiple of the ranks
    mine = torch.tensor([-1 - rank - (rank == 0)])
    assert hvd.allreduce(mine, name="negative").item() == -(total // size), "truncated"
    assert hvd.push_pull(mine, name="negative").item() == -total // size, "rounded down"
    flags = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(flags, op=hvd.Sum).tolist() == [True, True, False]
    assert hvd.allreduce(flags, op=hvd.Product).tolist() == [False, True, False]
    assert torch.equal(hvd.allreduce(torch.ones(2), average=False), torch.full((2,), float(size)))
    assert torch.equal(hvd.allreduce(torch.ones(2), True), torch.ones(2))


def _factors() -> None:
    hvd.init()
    size = hvd.size()
    for dtype in FLOATS:
        tensor = torch.full((5,), 3.0, dtype=dtype)
        result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.equal(result, torch.full((5,), 6.0 * size, dtype=dtype))
        hvd.allreduce_(tensor, op=hvd.Average, postscale_factor=0.5)
        assert torch.equal(tensor, torch.full((5,), 1.5, dtype=dtype))
    for dtype in INTEGERS:
        tensor = torch.full((5,), 7, dtype=dtype)
        # 7 * 0.5 is cut to 3 before it is sent; the sum times 0.7 is cut again.
        result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=0.7)
        assert torch.equal(result, torch.full((5,), int(3 * size * 0.7), dtype=dtype))
        assert torch.equal(tensor, torch.full((5,), 7, dtype=dtype))


def _groups() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((2 + number,), float(number + rank)) for number in range(5)]
    tensors.append(torch.full((3,), rank, dtype=torch.int32))
    expected = [torch.full_like(tensor, 0) for tensor in tensors]
    for number, tensor in enumerate(expected[:5]):
        tensor.fill_(number * size + sum(range(size)))
    expected[5].fill_(sum(range(size)))

    def same(results: Any) -> bool:
        return len(results) == 6 and all(torch.equal(a, b) for a, b in zip(results, expected))

    assert same(hvd.grouped_allreduce(tensors, op=hvd.Sum))
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")
    assert same(hvd.synchronize(handle)) and hvd.poll(handle) and same(hvd.synchronize(handle))
    handle = hvd.grouped_allreduce_async_(tensors, average=False, name="group")
    results = hvd.synchronize(handle)
    assert same(results) and all(a is b for a, b in zip(results, tensors))
    assert hvd.grouped_allreduce_(tensors)[0] is tensors[0] and same(tensors)
    assert hvd.grouped_allreduce([]) == []

    # One member that is refused: none is in flight, and the names are free.
    busy = hvd.allreduce_async(torch.ones(1), name="busy")
    with pytest.raises(TypeError):
        hvd.grouped_allreduce([torch.ones(1), 3], name="bad")
    taken = hvd.grouped_allreduce_async([torch.ones(1)], name="taken") if rank == 0 else None
    if rank == 0:
        with pytest.raises(ValueError, match=r"taken\.1"):
            hvd.grouped_allreduce([torch.ones(1)], name="taken")
    hvd.barrier()
    if rank != 0:
        taken = hvd.grouped_allreduce_async([torch.ones(1)], name="taken")
    assert hvd.synchronize(taken)[0].item() == 1
    assert hvd.synchronize(busy).item() == 1

    # Ranks that disagree about one member: the error of all, when the other members have ended.
    with pytest.raises(hvd.HorovodInternalError, match=r"odd\.2"):
        hvd.grouped_allreduce([torch.ones(4), torch.ones(1 + rank)], name="odd")
    assert hvd.grouped_allreduce([torch.ones(4), torch.ones(1)], name="odd", op=hvd.Sum)[1].item() == size


def _gradients() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    weight = float(rank + 1)
    total = float(sum(range(1, size + 1)))
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1.0 / size), (None, 1.0 / size)):
        tensor = torch.ones(3, requires_grad=True)
        (hvd.allreduce(tensor, op=op, prescale_factor=2.0) * weight).sum().backward()
        assert torch.allclose(tensor.grad, torch.full((3,), 2 * total * factor))
        tensors = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
        first, second = hvd.grouped_allreduce(tensors, op=op)
        ((first * weight).sum() + (second * 10 * weight).sum()).backward()
        assert torch.allclose(tensors[0].grad, torch.full((3,), total * factor))
        assert torch.allclose(tensors[1].grad, torch.full((2,), 10 * total * factor))
    tensor = torch.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        hvd.allreduce(tensor, op=hvd.Max).sum().backward()
    # Horovod's gradient of a broadcast is the average; the sum is there for who asks.
    for op, factor in ((hvd.Average, 1.0 / size), (hvd.Sum, 1.0)):
        tensor = torch.full((3,), float(rank), requires_grad=True)
        (hvd.broadcast(tensor, 1, gradient_op=op) * weight).sum().backward()
        assert torch.allclose(tensor.grad, torch.full((3,), total * factor if rank == 1 else 0.0))
    tensor = torch.ones(3, requires_grad=True)
    (hvd.broadcast(tensor, 0) * weight).sum().backward()
    assert torch.allclose(tensor.grad, torch.full((3,), total / size if rank == 0 else 0.0))


def _compressed() -> None:
    hvd.init()
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    for compression, dtype in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        expected = values.to(dtype).float()
        assert torch.equal(hvd.allreduce(values, compression=compression), expected), "the mean of equal ones"
        assert torch.equal(hvd.grouped_allreduce([values], compression=compression)[0], expected)
        assert hvd.allreduce(values.long(), compression=compression).dtype == torch.int64


def _names_of_their_own() -> None:
    """One name, three operations at once."""
    hvd.init()
    handles = [
        hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum),
        hvd.push_pull_async(torch.ones(3), name="x", average=False),
        hvd.grouped_allreduce_async([torch.ones(1)], name="x"),
    ]
    shapes = [hvd.synchronize(handle) for handle in handles]
    assert shapes[0].shape == (2,) and shapes[1].shape == (3,) and shapes[2][0].shape == (1,)
    with pytest.raises(ValueError, match="busy"):
        first = hvd.allreduce_async(torch.ones(2), name="busy")
        try:
            if hvd.rank() == 0:
                hvd.allreduce(torch.ones(2), name="busy")
            else:
                raise ValueError("busy")
        finally:
            hvd.barrier()
    assert torch.equal(hvd.synchronize(first), torch.ones(2))


def _refused() -> None:
    hvd.init()
    tensor = torch.ones(2)
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.raises(TypeError, match="prescale_factor"):
        hvd.allreduce(tensor, prescale_factor="much")
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="/dev/null/t"):
        hvd.start_timeline("/dev/null/t.json")
    with pytest.raises(hvd.FailedPreconditionError, match="no timeline"):
        hvd.stop_timeline()
    assert not any([hvd.mpi_built(), hvd.gloo_built(), hvd.nccl_built(), hvd.mpi_threads_supported()])
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)


def _ways_to_begin() -> None:
    for arguments, keywords in (
        ((), {}),
        ((True,), {}),
        ((), {"lazy": False}),
        ((None,), {}),
        (([],), {}),
        (([0, 1],), {}),
        ((), {"comm": [0, 1], "process_sets": "dynamic"}),
        ((None, []), {}),
    ):
        hvd.init(*arguments, **keywords)
        assert hvd.is_initialized() and hvd.size() == 2
        hvd.barrier()
        hvd.shutdown()
    with pytest.raises(TypeError, match=r"lazy .*comm"):
        hvd.init(1)
    with pytest.raises(ValueError, match="twice"):
        hvd.init([0, 1], comm=[0, 1])
    with pytest.raises(NotImplementedError, match="ranks 0 to 1"):
        hvd.init(comm=[0])
    assert not hvd.is_initialized()
    hvd.init()


def _train(**options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    groups = options.pop("groups", None)
    if groups == "lists":
        parameters = list(model.parameters())
        groups = [parameters[:2], [parameters[3], parameters[2]]]
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=groups, **options)
    assert optimizer._parameter_names[model[0].weight] == "0.weight"
    for step in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        model(inputs).square().sum().backward()
        assert optimizer._handles
        optimizer.step()
        assert not optimizer._handles
    return [parameter.detach().clone() for parameter in model.parameters()]


def _optimizer_options() -> None:
    hvd.init()
    plain = _train()
    for options in (
        {"groups": 2},
        {"groups": 100},
        {"groups": "lists"},
        {"gradient_predivide_factor": 2.0},
        {"process_set": hvd.global_process_set, "sparse_as_dense": True},
    ):
        assert all(torch.equal(a, b) for a, b in zip(_train(**options), plain)), options
    with pytest.warns(UserWarning, match="num_groups"):
        assert all(torch.equal(a, b) for a, b in zip(_train(num_groups=2), plain))
    parameter = nn.Parameter(torch.zeros(2))

    def make(**options: Any) -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **options)

    for groups in (-1, "two", [parameter], True):
        with pytest.raises(ValueError, match="groups should be"):
            make(groups=groups)
    with pytest.raises(ValueError, match="only appear once"):
        make(groups=[[parameter], [parameter]])
    with pytest.raises(ValueError, match="not supported with op"):
        make(op=hvd.Sum, gradient_predivide_factor=2.0)
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive"):
            make(gradient_predivide_factor=factor)
    with pytest.raises(ValueError, match="process_set"):
        make(process_set=hvd.ProcessSet([1]))
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS([parameter]))


def _sparse_as_dense() -> None:
    hvd.init()
    torch.manual_seed(0)
    embedding = nn.Embedding(6, 2, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), sparse_as_dense=True)
    embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
    optimizer.step()
    moved = (before - embedding.weight.detach()).round(decimals=4)
    share = 1.0 / hvd.size()
    expected = torch.zeros(6, 2)
    expected[: hvd.size()] = share
    expected[5] = 1.0
    assert torch.allclose(moved, expected, atol=1e-3), moved


def _two_threads() -> None:
    hvd.init()
    size = hvd.size()
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            for turn in range(100):
                tensor = torch.full((50 + number,), float(turn))
                assert torch.equal(hvd.allreduce(tensor, name=f"thread {number}", op=hvd.Sum), tensor * size)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
    assert not errors and not any(thread.is_alive() for thread in threads), errors


def _amp_and_fused() -> None:
    """GradScaler, a fused and a foreach optimizer, and clipping, with the weights equal on all ranks."""
    hvd.init()
    for options in ({"fused": True}, {"foreach": True}):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01, **options), model.named_parameters()
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        for parameter in model.parameters():
            assert torch.equal(hvd.broadcast(parameter.detach(), 0), parameter.detach())


def _scaled_step(model: nn.Module, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


def _clipped_step(model: nn.Module, optimizer: Any) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    optimizer.step()


def _step_without_gradients(model: nn.Module, optimizer: Any) -> None:
    model.zero_grad()
    optimizer.step()


def _gradients_changed_on_their_way() -> None:
    """As programs do that have no synchronize(): an error, in place of models that part."""
    hvd.init()
    for early in (_scaled_step, _clipped_step, _step_without_gradients):
        for options in ({}, {"fused": True}):
            torch.manual_seed(0)
            model = nn.Linear(6, 3)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.Adam(model.parameters(), lr=0.01, **options), model.named_parameters()
            )
            before = model.weight.detach().clone()
            model(torch.full((2, 6), 1.0 + hvd.rank())).sum().backward()
            with pytest.raises(RuntimeError, match=r"(was changed|GradScaler has come) .*synchronize"):
                early(model, optimizer)
            assert torch.equal(model.weight, before)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.full((2, 6), 1.0 + hvd.rank())).sum().backward()
                optimizer.step()
            assert not torch.equal(model.weight, before)
            for parameter in model.parameters():
                assert torch.equal(hvd.broadcast(parameter.detach(), 0), parameter.detach())


def _a_backward_pass_without_a_session() -> None:
    """Is an error, and the next one, in a session, begins anew."""
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    for groups in (None, 1):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=groups
        )
        hvd.shutdown()
        with pytest.raises(ValueError, match="not initialized"):
            model(torch.ones(1, 3)).sum().backward()
        hvd.init()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + hvd.rank())).sum().backward()
            optimizer.step()
        for parameter in model.parameters():
            assert torch.equal(hvd.broadcast(parameter.detach(), 0), parameter.detach())
        del optimizer


def _an_optimizer_made_twice() -> None:
    hvd.init()
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with pytest.raises(TypeError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer, model.named_parameters())


BODIES = [
    _gradients_changed_on_their_way,
    _a_backward_pass_without_a_session,
    _an_optimizer_made_twice,
    _values,
    _factors,
    _groups,
    _gradients,
    _compressed,
    _names_of_their_own,
    _refused,
    _ways_to_begin,
    _optimizer_options,
    _sparse_as_dense,
    _two_threads,
    _amp_and_fused,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


# Of any number of workers.
OF_ANY_SIZE = [_values, _factors, _groups, _gradients, _compressed, _names_of_their_own]


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (4, 0)])
def test_with_more_workers(run_bodies: Callable[..., Outcomes], workers: int, servers: int) -> None:
    outcomes = run_bodies(OF_ANY_SIZE, workers, servers)
    for body in OF_ANY_SIZE:
        outcomes.check(body)
