"""byteps.torch.elastic with members that stay: commit, restore, sync, and the sampler."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd
from byteps.errors import HostsUpdatedInterrupt
from byteps.torch import elastic
from jobs import Outcomes
from torch import nn

RunWorkers = Callable[..., Any]


def _made(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * (1 + rank), momentum=0.9), model.named_parameters()
    )
    return model, optimizer


def _state() -> None:
    hvd.init()
    rank = hvd.rank()
    model, optimizer = _made(rank)
    state = elastic.TorchState(model, optimizer, batch=rank, history=[rank])
    state.sync()
    assert (state.batch, state.history) == (0, [0]) and optimizer.param_groups[0]["lr"] == 0.1
    committed = model.weight.detach().clone()
    assert torch.equal(hvd.broadcast(committed, 0), committed)

    state.batch, state.history = 5, [1, 2]
    state.commit()
    assert state.commits == 1
    state.batch = 9
    state.history.append(3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, committed)
    state.restore()
    assert (state.batch, state.history) == (5, [1, 2])
    assert torch.equal(model.weight, committed)


def _train(fail_at: int | None) -> tuple[list[torch.Tensor], list[int], int]:
    """Weights, the batches that were begun, and how often the session was reset."""
    hvd.init()
    model, optimizer = _made(hvd.rank())
    state = elastic.TorchState(model, optimizer, batch=0)
    begun: list[int] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(1)])

    @elastic.run
    def train(state: Any) -> str:
        while state.batch < 6:
            begun.append(state.batch)
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + state.batch + hvd.rank())).sum().backward()
            if state.batch == fail_at and not resets:
                hvd.allreduce(torch.ones(1 + hvd.rank()), name="disagreement")
            optimizer.step()
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        return "done"

    assert train(state) == "done"
    return [parameter.detach().clone() for parameter in model.parameters()], begun, len(resets)


def _a_failed_operation_takes_back_to_the_commit() -> None:
    weights, begun, resets = _train(None)
    assert begun == list(range(6)) and resets == 0
    again, begun, resets = _train(3)
    assert begun == [0, 1, 2, 3, 2, 3, 4, 5] and resets == 1
    assert all(torch.equal(a, b) for a, b in zip(weights, again))


def _a_failure_behind_a_step() -> None:
    """With overlap_forward a gradient's operation fails when step() has returned; the program has one more of its own
    on its way."""
    hvd.init()
    rank = hvd.rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), overlap_forward=model
    )
    state = elastic.TorchState(model, optimizer, batch=0)
    resets: list[int] = []
    lonely: list[Any] = []
    state.register_reset_callbacks([lambda: resets.append(1)])

    def step(inputs: float) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 3), inputs)).sum().backward()
        optimizer.step()

    @elastic.run
    def train(state: Any) -> list[torch.Tensor]:
        while state.batch < 5:
            if state.batch == 3 and not resets:
                optimizer.zero_grad()
                loss = model(torch.ones(1, 3)).sum()
                if rank == 0:
                    lonely.append(hvd.allreduce_async(torch.ones(1), name="on rank 0 alone"))
                loss.backward()
                for item in optimizer._reducer.in_flight.values():
                    item.handle.cancel()
                optimizer.step()
            else:
                step(1.0 + state.batch)
            state.batch += 1
            if state.batch == 2:
                state.commit()
        optimizer.finish_step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    values = train(state)
    assert len(resets) == 1 and not optimizer._reducer.pending and not optimizer._reducer.in_flight
    for value in values:
        assert torch.equal(hvd.broadcast(value, 0), value)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    torch.manual_seed(0)
    for layer in plain:
        layer.reset_parameters()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in range(5):
        reference.zero_grad()
        plain(torch.full((1, 3), 1.0 + batch)).sum().backward()
        reference.step()
    for value, wanted in zip(values, plain.parameters()):
        torch.testing.assert_close(value, wanted.detach())


def _sparse_optimizers_begin() -> None:
    """An optimizer that takes sparse gradients alone gets its state by the model."""
    hvd.init()
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(model.parameters()), model.named_parameters())
    state = elastic.TorchState(model, optimizer)
    state.sync()
    model(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()
    state.commit()
    state.restore()
    # Others as well, with gradients of either layout.
    for made, options in (
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), {}),
        (torch.optim.Adam(model.parameters()), {"sparse_as_dense": True}),
    ):
        optimizer = hvd.DistributedOptimizer(made, model.named_parameters(prefix=type(made).__name__), **options)
        state = elastic.TorchState(model, optimizer)
        state.sync()
        optimizer.zero_grad()
        model(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()
        weights = hvd.allgather_object(model.weight.detach())
        assert torch.equal(weights[0], weights[1])


def _updates_interrupt_all_ranks() -> None:
    hvd.init()
    rank = hvd.rank()
    state = elastic.ObjectState(seen=0)
    calls: list[int] = []

    @elastic.run
    def train(state: Any) -> int:
        calls.append(state.seen)
        state.seen += 1
        if len(calls) == 1 and rank == 1:
            state.on_hosts_updated(skip_sync=True)
        state.commit()
        return state.seen

    assert train(state) == 2 and calls == [0, 1], "on both ranks, without going back"
    if rank == 0:
        state.on_hosts_updated()
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert not raised.value.skip_sync


def _own_errors_go_through() -> None:
    hvd.init()
    state = elastic.ObjectState(value=1)

    @elastic.run
    def train(state: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(state)

    attempts: list[int] = []

    @elastic.run
    def always(state: Any) -> None:
        attempts.append(1)
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="odd")

    with pytest.raises(hvd.HorovodInternalError, match="odd"):
        always(state)
    assert len(attempts) == 10


def _sampler() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    sampler = elastic.ElasticSampler(range(21), shuffle=True, seed=3)
    state = elastic.TorchState(sampler=sampler)
    state.sync()
    mine = list(sampler)
    assert len(mine) == len(sampler) == 11
    seen = hvd.broadcast_object(mine, 0) + hvd.broadcast_object(mine, 1)
    assert set(seen) == set(range(21)) and len(seen) == 22
    sampler.record_batch(0, 4)
    assert sampler.processed_indices == set(mine[:4])
    state.sync()
    assert len(sampler.processed_indices) == 4 * size, "what any rank has processed"
    assert not set(sampler) & sampler.processed_indices and len(sampler) == 7
    state.commit()
    sampler.record_batch(0, 7)
    state.restore()
    assert len(sampler.processed_indices) == 4 * size
    sampler.set_epoch(1)
    assert not sampler.processed_indices and len(list(sampler)) == 11
    assert list(sampler) != mine
    # The state of one rank will do for all: the others have processed as much.
    sampler.record_batch(0, 3)
    both = hvd.allgather_object(list(sampler)[:3])
    saved = hvd.broadcast_object(sampler.state_dict(), 0)
    assert saved == {"epoch": 1, "processed_indices": set(both[0]) | set(both[1])}
    again = elastic.ElasticSampler(range(21), shuffle=True, seed=3)
    again.load_state_dict(saved)
    rest = set().union(*hvd.allgather_object(list(again)))
    assert rest == set(range(21)) - saved["processed_indices"]
    assert again.state_dict() == saved, "nothing of what is left"
    plain = elastic.ElasticSampler(range(4), shuffle=False)
    assert list(plain) == list(range(rank, 4, size))


def _another_model_and_optimizer() -> None:
    """What is assigned to a state's model or optimizer takes the earlier one's place."""
    hvd.init()
    rank = hvd.rank()
    state = elastic.TorchState(*_made(0), sampler=elastic.ElasticSampler(range(8)), batch=0)
    bare = elastic.TorchState(batch=0, late=None)
    assert bare.model is None and bare.optimizer is None and bare.late is None
    for each, extra in ((state, False), (bare, True)):
        model, optimizer = _made(1 + rank)
        each.model, each.optimizer = model, optimizer
        if extra:
            each.late = nn.Linear(2, 1)
        each.sync()
        assert each.model is model and each.optimizer is optimizer, "themselves, not copies"
        shared = [*model.parameters(), *(each.late.parameters() if extra else ())]
        for parameter in shared:
            value = parameter.detach().clone()
            assert torch.equal(hvd.broadcast(value, 0), value)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
        each.commit()
        committed = [parameter.detach().clone() for parameter in shared]
        with torch.no_grad():
            for parameter in shared:
                parameter.add_(1.0)
        each.restore()
        assert all(torch.equal(one, value) for one, value in zip(shared, committed))
    sampler = elastic.ElasticSampler(range(4))
    state.sampler = sampler
    sampler.record_batch(0, 1)
    state.sync()
    assert state.sampler is sampler and len(sampler.processed_indices) == 2
    with pytest.raises(TypeError, match="model is a int"):
        state.model = 3
    assert isinstance(state.model, nn.Module)


def _schedulers() -> None:
    """What has a state_dict is saved and shared by it: a scheduler goes on driving the optimizer it was made for."""
    hvd.init()
    rank = hvd.rank()
    model, optimizer = _made(0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**rank, enabled=True)
    state = elastic.TorchState(model, optimizer, scheduler=scheduler, scaler=scaler, batch=0)
    state.sync()
    assert state.scheduler is scheduler
    assert scaler.get_scale() == 1.0, "that of rank 0"

    def step() -> float:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
        rate: float = optimizer.param_groups[0]["lr"]
        return rate

    assert step() == pytest.approx(0.05)
    state.commit()
    assert step() == pytest.approx(0.025)
    state.restore()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert scheduler.last_epoch == 1
    assert step() == pytest.approx(0.025)
    with pytest.raises(TypeError, match="scheduler is a int"):
        state.scheduler = 3
    with pytest.raises(TypeError, match="lock is a lock, which cannot be copied"):
        elastic.TorchState(model, optimizer, batch=0, lock=threading.Lock())


def _constructors_of_horovod() -> None:
    """State and ObjectState take the functions that Horovod's are made with."""
    hvd.init()
    sent: list[Any] = []

    def send(values: Any, *, root_rank: int = 0) -> Any:
        sent.append(root_rank)
        return hvd.broadcast_object(values, root_rank, name="by the user")

    state = elastic.ObjectState(bcast_object=send, get_rank=hvd.rank, value=hvd.rank())
    state.sync()
    assert state.value == 0 and sent == [0]
    state.value = hvd.rank()
    state.sync(1)
    assert state.value == 1 and sent == [0, 1]
    state.value = 5
    state.commit()
    state.value = 6
    state.restore()
    assert state.value == 5

    class Own(elastic.State):
        def __init__(self) -> None:
            super().__init__(hvd.broadcast_object, hvd.rank)
            self.saved = 0

        def save(self) -> None:
            self.saved += 1

    own = Own()
    own.commit()
    assert own.saved == 1


def _sampler_of_horovod() -> None:
    """The state of a sampler of Horovod: how far it has come in its order of the epoch."""
    hvd.init()
    plain = elastic.ElasticSampler(range(10), shuffle=False)
    plain.load_state_dict({"epoch": 1, "processed_num": 4})
    assert plain.epoch == 1 and plain.processed_indices == {0, 1, 2, 3}
    assert list(plain) == [4 + hvd.rank(), 6 + hvd.rank(), 8 + hvd.rank()]
    shuffled = elastic.ElasticSampler(range(10), seed=3)
    shuffled.load_state_dict({"epoch": 2, "processed_num": 4})
    order = list(range(10))
    random.Random(3 + 2).shuffle(order)
    assert shuffled.processed_indices == set(order[:4])


BODIES = [
    _state,
    _another_model_and_optimizer,
    _schedulers,
    _constructors_of_horovod,
    _sampler_of_horovod,
    _a_failed_operation_takes_back_to_the_commit,
    _a_failure_behind_a_step,
    _sparse_optimizers_begin,
    _updates_interrupt_all_ranks,
    _own_errors_go_through,
    _sampler,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _lose_a_member() -> str:
    hvd.init()

    @elastic.run
    def train(state: Any) -> None:
        if hvd.rank() == 1:
            import os

            os._exit(0)
        hvd.allreduce(torch.ones(3), name="lonely")

    with pytest.raises(hvd.UnavailableError) as raised:
        train(elastic.ObjectState(value=1))
    return str(raised.value)


def test_a_lost_member_ends_training(run_workers: RunWorkers) -> None:
    result = run_workers(_lose_a_member, check=False).results[0]
    assert result is not None and "rank 1" in result
