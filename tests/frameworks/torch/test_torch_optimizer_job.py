"""DistributedOptimizer over several workers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from torch import nn

RunWorkers = Callable[..., Any]

BATCH = 8
STEPS = 12


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 10), nn.Tanh(), nn.Linear(10, 3)
    )


def _batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of all workers together."""
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(BATCH * size, 1, 8, 8, generator=generator),
        torch.randint(3, (BATCH * size,), generator=generator),
    )


def _weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def _train(optimizer_name: str, named: bool, groups: bool, passes: int) -> list[torch.Tensor]:
    """Data-parallel training; each worker begins with other weights and takes its part of each batch."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    torch.set_num_threads(1)
    model = _model(seed=rank)
    parameters: Any = list(model.parameters())
    if groups:
        parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01}]
    optimizer = OPTIMIZERS[optimizer_name](parameters)
    optimizer = bps.DistributedOptimizer(
        optimizer, model.named_parameters() if named else None, backward_passes_per_step=passes
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(STEPS):
        inputs, targets = _batch(step, size)
        optimizer.zero_grad()
        part = BATCH // passes
        for number in range(passes):
            mine = slice(rank * BATCH + number * part, rank * BATCH + (number + 1) * part)
            (nn.functional.cross_entropy(model(inputs[mine]), targets[mine]) / passes).backward()
        optimizer.step()
    return _weights(model)


@pytest.mark.parametrize(
    ("optimizer_name", "named", "groups", "passes", "workers"),
    [("SGD", True, False, 1, 2), ("Adam", False, True, 1, 2), ("SGD", False, True, 4, 3)],
)
def test_the_weights_of_one_process_with_the_whole_batch(
    run_workers: RunWorkers, optimizer_name: str, named: bool, groups: bool, passes: int, workers: int
) -> None:
    results = run_workers(_train, optimizer_name, named, groups, passes, workers=workers).results
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other)), "all workers have the same bits"

    model = _model(seed=0)
    start = _weights(model)
    parameters: Any = list(model.parameters())
    if groups:
        parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01}]
    optimizer = OPTIMIZERS[optimizer_name](parameters)
    for step in range(STEPS):
        inputs, targets = _batch(step, workers)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    # The sums are the same but for the order of the additions: float32 has 24 bits, of which a dozen steps may cost a
    # few. Adam divides by the root of small squares, which magnifies.
    tolerance = {"SGD": 2e-6, "Adam": 2e-5}[optimizer_name]
    for mine, reference, begin in zip(results[0], model.parameters(), start):
        assert (mine - reference).abs().max() < tolerance
        assert (reference - begin).abs().max() > 100 * tolerance, "they did learn"


class _Branches(nn.Module):
    """Uses only the branch it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(3)])

    def forward(self, inputs: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which](inputs)


def _wide_model(seed: int) -> nn.Module:
    """Gradients large enough for buffers of their own, and small ones beside them."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 300), nn.Tanh(), nn.Linear(300, 3))


def _wide_batch(step: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(64, 64, generator=generator)[rows],
        torch.randint(3, (64,), generator=generator)[rows],
    )


def _train_in_buffers(buffers: bool, set_to_none: bool, meddle: bool) -> tuple[list[torch.Tensor], int]:
    """The weights, and how many different memories the first gradient had."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    torch.set_num_threads(1)
    model = _wide_model(seed=rank)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        gradient_buffers=buffers,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    share = 64 // size
    first = next(model.parameters())
    places = set()
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        if meddle and step % 3 == 1:
            first.grad = torch.zeros_like(first)  # the user's own
        inputs, targets = _wide_batch(step, slice(rank * share, (rank + 1) * share))
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        places.add(first.grad.data_ptr())
        if meddle and step == 5:
            bps.shutdown()
            bps.init()
    return _weights(model), len(places)


def _train_alone() -> list[torch.Tensor]:
    model = _wide_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = _wide_batch(step, slice(0, 64))
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return _weights(model)


@pytest.mark.parametrize(
    ("buffers", "set_to_none", "meddle", "servers", "shm", "places"),
    [
        (True, False, False, 0, "1", 2),  # two that change places
        (True, True, False, 0, "1", 1),  # autograd's own into one of ours
        (True, False, True, 0, "1", None),
        (False, False, False, 0, "1", 1),
        (True, False, False, 1, "1", 2),  # through a server, which sees them, too
        (True, False, False, 1, "0", 1),  # over the network: in place
    ],
)
def test_gradients_in_buffers(
    buffers: bool, set_to_none: bool, meddle: bool, servers: int, shm: str, places: int | None, run_workers: RunWorkers
) -> None:
    results = run_workers(_train_in_buffers, buffers, set_to_none, meddle, servers=servers, BYTEPS_SHM=shm).results
    alone = _train_alone()
    for weights, found in results:
        assert all(torch.equal(ours, first) for ours, first in zip(weights, results[0][0]))
        for ours, expected in zip(weights, alone):
            torch.testing.assert_close(ours, expected)
        assert places is None or found == places


def _clip_what_was_kept() -> tuple[bool, bool]:
    """Clipped to zero through a list of the gradients from before synchronize(): did no weight move, and are they the
    gradients still?"""
    bps.init()
    model = _wide_model(seed=0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = _weights(model)
    inputs, targets = _wide_batch(0, slice(0, 32))
    nn.functional.cross_entropy(model(inputs), targets).backward()
    kept = [parameter.grad for parameter in model.parameters()]
    optimizer.synchronize()
    torch._foreach_mul_(kept, 0.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    same = all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), kept))
    return all(torch.equal(now, then) for now, then in zip(_weights(model), before)), same


def test_gradients_that_were_kept_are_the_gradients(run_workers: RunWorkers) -> None:
    """Also large ones, whose sums come elsewhere."""
    assert run_workers(_clip_what_was_kept, servers=0).results == [(True, True)] * 2


def _produced_twice(before_the_others: bool) -> str:
    """By rank 0 in the first step."""
    bps.init()
    model = _model()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    inputs, targets = _batch(0, 4)
    before = _weights(model)
    message = ""
    if bps.rank() == 0:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward(retain_graph=True)
        if not before_the_others:
            bps.barrier()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step=1 times"):
            loss.backward()
        with pytest.raises(RuntimeError) as changed:
            optimizer.step()
        message = str(changed.value)
        if before_the_others:
            bps.barrier()
    elif before_the_others:
        bps.barrier()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        with pytest.raises(bps.AbortedError) as gave_up:
            optimizer.step()
        message = str(gave_up.value)
    else:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.synchronize()
        bps.barrier()
        with optimizer.skip_synchronize():
            optimizer.step()
    took = not all(torch.equal(now, then) for now, then in zip(_weights(model), before))
    assert took == (bps.rank() > 0 and not before_the_others)
    optimizer.zero_grad()
    bps.broadcast_parameters(model.state_dict(), root_rank=1)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    sums = [round(float(one.sum()), 6) for one in _weights(model)]
    assert bps.allgather_object(sums)[0] == sums
    return message


def test_a_gradient_that_is_produced_twice_is_an_error_of_all(run_workers: RunWorkers) -> None:
    messages = run_workers(_produced_twice, True).results
    assert "was changed between backward() and step()" in messages[0]
    assert "rank 0" in messages[1] and "gave up" in messages[1]


def test_a_gradient_that_is_produced_twice_when_the_others_have_the_sums(run_workers: RunWorkers) -> None:
    messages = run_workers(_produced_twice, False).results
    assert "was changed between backward() and step()" in messages[0]
    assert "broadcast_parameters()" in messages[0] and messages[1] == ""


def _predivided() -> str:
    bps.init()
    model = _model()
    factor = 1.0 + bps.rank()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_predivide_factor=factor
    )
    inputs, targets = _batch(0, 4)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(bps.BytePSError) as caught:
        optimizer.step()
    return str(caught.value)


def test_predivide_factors_that_differ_are_no_sum(run_workers: RunWorkers) -> None:
    messages = run_workers(_predivided, BYTEPS_OP_TIMEOUT="5").results
    assert "predivided by 2" in messages[1], messages[1]
    assert all("rank" in message for message in messages)


def _missing_gradients() -> None:
    bps.init()
    rank = bps.rank()
    model = _Branches()
    bps.broadcast_parameters(model.state_dict())
    before = _weights(model)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()  # to None
        model(torch.ones(1, 2), which=rank).sum().backward()
        optimizer.step()
    # Branches 0 and 1 got a gradient of ones on one of the ranks each, branch 2 on none.
    for branch, (after, start) in enumerate(zip(model.parameters(), before)):
        # Step by step: the weights are random, and (w - 0.5) - 0.5 need not have the bits of w - 1.
        step = 0.5 * torch.ones(1, 2) * (branch < 2)
        assert torch.equal(after, (start - step) - step), branch


def _rules() -> None:
    bps.init()
    rank = bps.rank()
    parameter = torch.zeros(3, requires_grad=True)
    frozen = torch.zeros(2)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([parameter, frozen], lr=1.0), [("p", parameter), ("frozen", frozen)], op=bps.Sum
    )

    def backward() -> None:
        (parameter * (rank + 1)).sum().backward()

    # Twice before step().
    backward()
    with pytest.raises(AssertionError, match=r"gradient of Gradient\.p was computed more than"):
        backward()
    with pytest.raises(AssertionError, match=r"zero_grad.*several passes, set backward_passes_per_step"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()  # the second pass was added to the gradient, at a time of its own

    # synchronize, change the gradient, step.
    backward()
    optimizer.synchronize()
    parameter.grad.clamp_(max=2)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert parameter.tolist() == [-2, -2, -2]

    # Forgetting skip_synchronize reduces twice, and says so.
    optimizer.zero_grad()
    backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"without optimizer\.skip_synchronize\(\)"):
        optimizer.step()
    assert parameter.tolist() == [-8, -8, -8]

    # A closure: its gradients are reduced before they are used.
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter * (rank + 1)).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == -24 * (rank + 1)
    assert parameter.tolist() == [-11, -11, -11]

    # Several passes, and back again.
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    backward()
    backward()
    optimizer.step()
    assert parameter.tolist() == [-17, -17, -17]

    # A pass is left out: its gradient is gone with zero_grad(), and it is not counted any more behind the other call.
    for forget in (False, True):
        optimizer.zero_grad()
        backward()
        optimizer.zero_grad()
        if forget:
            optimizer.forget_gradients()
        backward()
        if not forget:
            with pytest.raises(AssertionError, match=r"per_step=2 times.*zero_grad\(\) between passes.*forget_grad"):
                backward()
            optimizer.synchronize()
            continue
        backward()
        optimizer.step()
    assert parameter.tolist() == [-23, -23, -23]
    optimizer.set_backward_passes_per_step(1)
    assert frozen.grad is None

    # Thawed: reduced from now on, though it had no hook when it was wrapped.
    frozen.requires_grad_()
    for turn in (1, 2):
        optimizer.zero_grad()
        ((parameter.sum() + frozen.sum()) * (rank + 1)).backward()
        optimizer.step()
        assert frozen.tolist() == [-3 * turn, -3 * turn]

    # A new group.
    new = torch.zeros(1, requires_grad=True)
    optimizer.add_param_group({"params": [new], "lr": 0.5})
    optimizer.zero_grad()
    (new * (rank + 1)).sum().backward()
    optimizer.step()
    assert new.tolist() == [-1.5]


def _lazy_parameters() -> None:
    """An error that names the parameter; behind a forward pass it is one as any."""
    bps.init()
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(1, bias=False))
    for named, name in ((True, r"1\.weight"), (False, r"noname\.\d+\.2")):
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(ValueError, match=name + r" is uninitialized: .*Call the model once"):
            bps.DistributedOptimizer(inner, model.named_parameters() if named else None)
    with pytest.raises(ValueError, match=r"1\.weight: the tensor is uninitialized"):
        bps.broadcast_parameters(model.named_parameters())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model[:1].parameters(), lr=1.0))
    with pytest.raises(ValueError, match=r"noname\.\d+\.group\.1\.0 is uninitialized"):
        optimizer.add_param_group({"params": list(model[1].parameters())})
    assert len(optimizer.param_groups) == 1
    model(torch.ones(1, 2))
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    model(torch.full((1, 2), float(bps.rank()))).sum().backward()
    optimizer.step()
    weight = model[1].weight.detach()
    assert torch.equal(bps.broadcast(weight, 0, name="lazy"), weight)


def _two_optimizers() -> None:
    """As for a GAN: one backward pass reaches the parameters of both, and neither is named."""
    bps.init()
    rank = bps.rank()
    first, second = (torch.zeros(size, requires_grad=True) for size in (2, 3))
    optimizers = [bps.DistributedOptimizer(torch.optim.SGD([p], lr=1.0)) for p in (first, second)]
    (first.sum() + second.sum() * (rank + 1)).backward()
    for optimizer in optimizers if rank == 0 else reversed(optimizers):
        optimizer.step()
    assert first.tolist() == [-1] * 2
    assert second.tolist() == [-1.5] * 3


def _compressed() -> None:
    bps.init()
    rank = bps.rank()
    parameter = torch.zeros(2, requires_grad=True)
    factors = torch.tensor([1 + 2**-13, 0.25]) * (rank + 1)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression=bps.Compression.fp16
    )
    for _ in range(2):
        optimizer.zero_grad()
        (parameter * factors).sum().backward()
        optimizer.step()
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.tolist() == [1.5, 0.375]
    assert parameter.tolist() == [-3, -0.75]


class _Halves(bps.Compression.none):
    """Sends what it is given, and doubles what comes."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
        return tensor, tensor.max().item()  # of no empty tensor

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: float) -> torch.Tensor:
        assert ctx > 0
        return tensor * 2


def _a_compressor_of_the_program() -> None:
    """One that sends the gradient itself gets back what comes of it, too."""
    bps.init()
    for elements in (2, 1 << 16):  # of which the second goes into another buffer where there are several workers
        for op, expected in ((bps.Average, 3.0), (bps.Sum, 6.0), (bps.Adasum, 3.0)):
            parameter = torch.zeros(elements, requires_grad=True)
            optimizer = bps.DistributedOptimizer(
                torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression=_Halves, op=op
            )
            for step in (1, 2):
                optimizer.zero_grad()
                # Adasum: of changes, and of like direction it makes their mean (of -1 and -1).
                (parameter * (-1.0 if op is bps.Adasum else 1.0 + bps.rank())).sum().backward()
                optimizer.step()
                if op is bps.Adasum:
                    assert (parameter == 2.0 * step).all(), parameter
                else:
                    assert (parameter.grad == expected).all() and (parameter == -expected * step).all(), parameter
        assert bps.allreduce(torch.ones(2), compression=_Halves).tolist() == [2.0, 2.0]


def _memory_formats() -> None:
    bps.init()
    rank = bps.rank()
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    inputs = [torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(of)) for of in range(2)]
    reference = copy.deepcopy(model)
    torch.cat([reference(i.to(memory_format=torch.channels_last)) for i in inputs]).sum().div(2).backward()
    model(inputs[rank].to(memory_format=torch.channels_last)).sum().backward()
    optimizer.step()
    for mine, wanted in itertools.zip_longest(model.parameters(), reference.parameters()):
        assert torch.allclose(mine.grad, wanted.grad, rtol=1e-4, atol=1e-5)


def _disagreement() -> None:
    """One rank's parameter has another shape: both learn it at the step, and the session goes on."""
    bps.init()
    rank = bps.rank()
    parameters = [torch.zeros(3 + rank, requires_grad=True), torch.zeros(2, requires_grad=True)]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=1.0), [("odd", parameters[0]), ("even", parameters[1])]
    )
    sum(parameter.sum() for parameter in parameters).backward()
    with pytest.raises(bps.FailedPreconditionError, match=r"Gradient\.odd"):
        optimizer.step()
    optimizer.zero_grad()  # nothing is in flight any more
    parameters[1].sum().backward()
    with pytest.raises(bps.FailedPreconditionError, match=r"Gradient\.odd"):
        optimizer.step()
    assert bps.push_pull(torch.ones(1), average=False).item() == 2


def _gradients_of_another_dtype() -> None:
    """A rank without a gradient contributes zeros of the data type that the others' gradients have."""
    bps.init()
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    if not hasattr(parameter, "grad_dtype"):  # before PyTorch 2.10
        return
    parameter.grad_dtype = torch.float32
    other = torch.nn.Parameter(torch.ones(3))
    named = [("wide", parameter), ("plain", other)]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter, other], 0.1, foreach=False), named)
    loss = other.sum()
    if bps.rank() == 0:
        loss = loss + 2 * parameter.float().sum()
    loss.backward()
    optimizer.synchronize()
    assert parameter.grad is not None and parameter.grad.dtype is torch.float32
    assert parameter.grad.tolist() == [2 / bps.size()] * 4


BODIES = [
    _gradients_of_another_dtype,
    _missing_gradients,
    _rules,
    _lazy_parameters,
    _two_optimizers,
    _compressed,
    _a_compressor_of_the_program,
    _memory_formats,
    _disagreement,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _models_that_differ() -> None:
    bps.init()
    layers = [torch.nn.Linear(3, 3) for _ in range(3 - bps.rank())]
    model = torch.nn.Sequential(*layers)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    model(torch.ones(3)).sum().backward()
    with pytest.raises(bps.FailedPreconditionError, match="disagree"):
        optimizer.step()
    bps.barrier("both know", timeout=20)  # and not one of them at the deadline of its gradients
    assert bps.push_pull(torch.ones(2), average=False, name="afterwards").tolist() == [2, 2]


def test_models_that_differ(run_workers: RunWorkers) -> None:
    run_workers(_models_that_differ, BYTEPS_OP_TIMEOUT="60")
