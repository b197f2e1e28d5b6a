"""Adasum: the formula in float64 against all the calls that take it, and the optimizer that combines steps by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from torch import nn

RunWorkers = Callable[..., Any]


def _combined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The formula, in float64: neighbours first, what is left over waits."""
    level = [tensor.double() for tensor in tensors]
    while len(level) > 1:
        pairs = []
        for a, b in zip(level[::2], level[1::2]):
            dot, of_a, of_b = (a * b).sum(), a.square().sum(), b.square().sum()
            pairs.append((1 - dot / (2 * of_a) if of_a else 1) * a + (1 - dot / (2 * of_b) if of_b else 1) * b)
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def _of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + rank), dtype=torch.float64).to(dtype)


def _check(result: torch.Tensor, inputs: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    assert result.dtype == inputs[0].dtype and result.shape == inputs[0].shape
    torch.testing.assert_close(result.double(), _combined(inputs), rtol=tolerance, atol=tolerance)


def _calls() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-6)):
        inputs = [_of(other, 300, 20, dtype=dtype) for other in range(size)]
        mine = inputs[rank]
        for result in (
            hvd.allreduce(mine, op=hvd.Adasum),
            hvd.allreduce_(mine.clone(), op=hvd.Adasum),
            hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Adasum, name="same")),
            hvd.synchronize(hvd.allreduce_async_(mine.clone(), op=hvd.Adasum)),
            *hvd.grouped_allreduce([mine, mine], op=hvd.Adasum),
            *hvd.grouped_allreduce_([mine.clone()], op=hvd.Adasum),
            hvd.push_pull(mine, op=hvd.Adasum),
            hvd.ops.push_pull_inplace(mine.clone(), op=hvd.Adasum, name="same"),
            hvd.allreduce(mine.t().contiguous().t(), op=hvd.Adasum),
        ):
            _check(result, inputs, tolerance)
        others = hvd.allgather(hvd.allreduce(mine, op=hvd.Adasum).reshape(1, -1).float())
        assert all(torch.equal(one, others[0]) for one in others), "the same bits on all ranks"
    inputs = [_of(other, 7) for other in range(size)]
    scaled = hvd.allreduce(inputs[rank], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    _check(scaled, [one / 2 for one in inputs])
    half = hvd.allreduce(inputs[rank], op=hvd.Adasum, compression=hvd.Compression.fp16)
    torch.testing.assert_close(half.double(), _combined(inputs), rtol=1e-2, atol=1e-2)
    if size > 2:
        some = hvd.add_process_set([0, size - 1])
        if rank in (0, size - 1):
            _check(hvd.allreduce(inputs[rank], op=hvd.Adasum, process_set=some), [inputs[0], inputs[-1]])
    with pytest.raises(hvd.BytePSError, match="adasum of int32 has no meaning"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="gradient"):
        hvd.allreduce(torch.ones(2, requires_grad=True), op=hvd.Adasum).sum().backward()
    for call in (hvd.reducescatter, hvd.grouped_reducescatter):
        with pytest.raises(NotImplementedError, match="Adasum"):
            call([torch.ones(2)] if call is hvd.grouped_reducescatter else torch.ones(2), op=hvd.Adasum)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_call_follows_the_formula(run_workers: RunWorkers, workers: int) -> None:
    run_workers(_calls, workers=workers)


class _Model(nn.Module):
    """The second branch is used by rank 0 alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4, sparse=True)
        self.hidden = nn.Linear(4, 5)
        self.seldom = nn.Linear(4, 5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)

    def forward(self, words: torch.Tensor, seldom: bool) -> torch.Tensor:
        given = self.words(words)
        hidden = self.hidden(given) + (self.seldom(given) if seldom else 0)
        return self.frozen(hidden).square().mean()


def _backward(model: nn.Module, rank: int, step: int) -> None:
    words = torch.randint(10, (6,), generator=torch.Generator().manual_seed(10 * step + rank))
    model(words, rank == 0).backward()


def _expected(
    ranks: list[int], make: Callable[..., torch.optim.Optimizer], steps: int, passes: int
) -> list[torch.Tensor]:
    """What the ranks come to, by one model and one optimizer of each, whose changes are combined by the formula."""
    models = [_Model() for _ in ranks]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, model, optimizer in zip(ranks, models, optimizers):
            optimizer.zero_grad()
            for each in range(passes):
                _backward(model, rank, step * passes + each)
            optimizer.step()
        with torch.no_grad():
            for start, *copies in zip(before, *(model.parameters() for model in models)):
                change = _combined([copy - start for copy in copies]).float()
                for copy in copies:
                    copy.copy_(start + change)
    return [parameter.detach() for parameter in models[0].parameters()]


def _adagrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.05)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)


def _trains() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for make, options in (
        (_adagrad, {}),
        (_momentum, {"groups": 2}),
        (_momentum, {"backward_passes_per_step": 2}),
        (_momentum, {"process_set": hvd.add_process_set([0, size - 1]) if size > 2 else hvd.global_process_set}),
    ):
        process_set = options.get("process_set", hvd.global_process_set)
        if not process_set.included():
            continue
        model, passes = _Model(), options.get("backward_passes_per_step", 1)
        inner = make(model.parameters())
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Adasum, **options)
        assert isinstance(optimizer, type(inner))
        for step in range(4):
            optimizer.zero_grad()
            for each in range(passes):
                _backward(model, rank, step * passes + each)
            optimizer.synchronize()
            optimizer.step()
        for mine, expected in zip(model.parameters(), _expected(process_set.ranks, make, 4, passes)):
            torch.testing.assert_close(mine.detach(), expected, rtol=1e-5, atol=1e-6)
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        for other in hvd.allgather(flat.reshape(1, -1), process_set=process_set):
            assert torch.equal(other, flat), "the same bits on all ranks"


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_steps_are_combined(run_workers: RunWorkers, workers: int) -> None:
    run_workers(_trains, workers=workers)


def _odd_calls() -> None:
    hvd.init()
    weight = nn.Parameter(torch.ones(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), op=hvd.Adasum)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * (1 + hvd.rank())).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0 * (1 + hvd.rank())
    # Of like direction: from -0.5 and -1 comes their mean of one half of each and the projections on each other.
    expected = 1 + _combined([torch.full((4,), -0.5), torch.full((4,), -1.0)])
    torch.testing.assert_close(weight.detach().double(), expected)
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        weight.sum().backward()
        weight.sum().backward()
    with pytest.raises(AssertionError, match="Skipping synchronization"), optimizer.skip_synchronize():
        pass
    half = hvd.DistributedOptimizer(
        torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.5), op=hvd.Adasum, compression=hvd.Compression.fp16
    )
    parameter = half.param_groups[0]["params"][0]
    parameter.sum().backward()
    half.step()
    assert torch.equal(parameter.detach(), torch.full((3,), 0.5))
    words = nn.Embedding(4, 2, sparse=True)
    start = words.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(words.parameters(), lr=0.5), op=hvd.Adasum, sparse_as_dense=True, backward_passes_per_step=2
    )
    for row in (1, 2):
        words(torch.tensor([row])).sum().backward()
    assert not words.weight.grad.is_sparse
    optimizer.step()  # which takes no sparse gradients
    torch.testing.assert_close(words.weight.detach()[1:3], start[1:3] - 0.5)
    assert torch.equal(words.weight.detach()[[0, 3]], start[[0, 3]])
    for options, text in (
        ({"gradient_predivide_factor": 2.0}, "predivide"),
        ({"overlap_forward": nn.Linear(1, 1)}, "overlap_forward"),
    ):
        model = options.get("overlap_forward") or nn.Linear(1, 1)
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Adasum, **options)
    # The ranks disagree: an error for both, and parameters that have not moved.
    odd = nn.Parameter(torch.ones(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([odd], lr=0.5), op=hvd.Adasum)
    odd.sum().backward()
    with pytest.raises(hvd.FailedPreconditionError, match="agree"):
        optimizer.step()
    assert torch.equal(odd.detach(), torch.ones(2 + hvd.rank()))


def test_odd_calls(run_workers: RunWorkers) -> None:
    run_workers(_odd_calls)


def test_alone(alone: None) -> None:
    tensor = torch.randn(5)
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Adasum), tensor)
    weight = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), op=hvd.Adasum)
    weight.sum().backward()
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((2,), 0.5))
