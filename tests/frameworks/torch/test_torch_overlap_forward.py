"""DistributedOptimizer(overlap_forward=model): whatever looks at the parameters, and what goes wrong."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.handle import Handle
from jobs import Outcomes
from late_gradients import nothing_is_home
from torch import nn

RunWorkers = Callable[..., Any]


def _small(**options: Any) -> tuple[nn.Sequential, Any]:
    """A model of two layers whose optimizer has taken its first step, which waits."""
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5),
        model.named_parameters(),
        **{"overlap_forward": model, **options},
    )
    bps.broadcast_parameters(model.state_dict())
    _small_step(model, optimizer)
    return model, optimizer


def _small_step(model: Callable[[torch.Tensor], torch.Tensor], optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3) * (1 + bps.rank())).square().sum().backward()
    optimizer.step()


def _held(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if type(parameter) is not nn.Parameter]


ALL = ["0.weight", "0.bias", "2.weight", "2.bias"]


def _expected(steps: int) -> list[torch.Tensor]:
    """The parameters after so many steps, without overlap."""
    model, optimizer = _small(overlap_forward=None)
    for _ in range(steps - 1):
        _small_step(model, optimizer)
    return [parameter.detach().clone() for parameter in model.parameters()]


def _check_expected(model: nn.Module, steps: int) -> None:
    assert all(torch.equal(ours, other) for ours, other in zip(model.parameters(), _expected(steps)))
    assert not _held(model)


def _waits_only_for_what_is_used() -> None:
    model, optimizer = _small()
    with nothing_is_home():
        _small_step(model, optimizer)
        assert _held(model) == ALL
        weight = model[0].weight
        assert (weight.shape, weight.dtype, weight.requires_grad, len(weight)) == ((4, 3), torch.float32, True, 4)
        assert isinstance(weight, nn.Parameter)
        assert weight in optimizer.param_groups[0]["params"]
        assert _held(model) == ALL, "nothing has asked for a value"
        model[0](torch.ones(1, 3))
        assert _held(model) == ["2.weight", "2.bias"], "the parameters of one module"
        model[2].bias.sum()
        assert _held(model) == ["2.weight"], "one parameter"
        assert model[2].weight.grad.abs().sum() > 0
        _check_expected(model, 2)
        _small_step(model, optimizer)
        optimizer.finish_step()
    _check_expected(model, 3)


def _what_is_home_is_updated_at_once() -> None:
    model, optimizer = _small()
    optimizer.zero_grad()
    model(torch.ones(2, 3) * (1 + bps.rank())).square().sum().backward()
    for item in optimizer._reducer.in_flight.values():
        item.handle._request.wait(60)
    optimizer.step()
    assert not _held(model)
    _check_expected(model, 2)


def _another_thread_uses_it() -> None:
    model, optimizer = _small()
    with nothing_is_home():
        _small_step(model, optimizer)
        thread = threading.Thread(target=model.state_dict)
        thread.start()
        thread.join()
        assert not _held(model)
    _check_expected(model, 2)


def _dropped_before_the_update() -> None:
    """The last step counts, though the optimizer was not kept."""
    model, optimizer = _small()
    alive = weakref.ref(optimizer)
    with nothing_is_home():
        _small_step(model, optimizer)
        del optimizer
        gc.collect()
        assert alive() is not None
        _check_expected(model, 2)
    gc.collect()
    assert alive() is None
    assert not any(module._forward_pre_hooks for module in model.modules())


def _shutdown_before_the_update() -> None:
    model, optimizer = _small()
    with nothing_is_home():
        _small_step(model, optimizer)
        bps.shutdown()
        assert _held(model) == ALL
        model[0].weight.sum()
        copied = copy.deepcopy(model)
    bps.init()
    _check_expected(copied, 2)
    _check_expected(model, 2)
    _small_step(model, optimizer)
    _check_expected(model, 3)


def _a_forked_child_uses_it() -> None:
    model, optimizer = _small()
    with nothing_is_home():
        _small_step(model, optimizer)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    model.state_dict()
                except bps.FailedPreconditionError:
                    status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert _held(model) == ALL
    _check_expected(model, 2)


def _interrupted() -> None:
    """Ctrl-C in a wait changes nothing: the next one goes on."""
    model, optimizer = _small()
    with nothing_is_home():
        _small_step(model, optimizer)
        synchronize = Handle.synchronize

        def interrupted(self: Handle, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

        Handle.synchronize = interrupted  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(1, 3))
        finally:
            Handle.synchronize = synchronize  # type: ignore[method-assign]
        assert _held(model) == ALL
    _check_expected(model, 2)


class _OwnParameter(nn.Parameter):
    """A trainer's own class."""


def _other_classes() -> None:
    """Plain tensors are held, too; parameters of a trainer's own class are waited for in step()."""
    bps.init()
    model = nn.Module()
    model.own = _OwnParameter(torch.zeros(3))
    tensor = torch.zeros(3, requires_grad=True)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([model.own, tensor], lr=1.0), [("own", model.own), ("tensor", tensor)], overlap_forward=model
    )
    for step in range(3):
        optimizer.zero_grad()
        ((model.own + 2 * tensor).sum() * (1 + bps.rank())).backward()
        with nothing_is_home():
            optimizer.step()
        assert type(model.own) is _OwnParameter
        assert (type(tensor) is torch.Tensor) == (step == 0)
        assert copy.deepcopy(tensor).tolist() == [-3 * (step + 1)] * 3
        assert type(tensor) is torch.Tensor
        assert model.own.tolist() == [-1.5 * (step + 1)] * 3


def _step_hooks() -> None:
    """They see whole steps, and each only once, also after load_state_dict()."""
    for overlap in (False, True):
        model, optimizer = _small(**({} if overlap else {"overlap_forward": None}))
        optimizer.load_state_dict(optimizer.state_dict())
        seen: list[float] = []
        handle = optimizer.register_step_post_hook(
            lambda of, _, __, seen=seen, model=model: seen.append(model[0].weight.sum().item())
        )
        with nothing_is_home(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _small_step(model, optimizer)
            _small_step(model, optimizer)
        assert len(seen) == 2
        assert seen[1] == _expected(3)[0].sum().item()
        assert [str(w.message).partition(" (")[0] for w in caught] == ["the optimizer has step hooks"] * overlap
        handle.remove()
        with nothing_is_home():
            _small_step(model, optimizer)
            assert bool(_held(model)) == overlap
        _check_expected(model, 4)


def _grad_scaler() -> None:
    if not hasattr(torch.amp, "GradScaler"):
        return
    ends = []
    for overlap in (False, True):
        model, optimizer = _small(**({} if overlap else {"overlap_forward": None}))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3) * (1 + bps.rank())).square().sum()).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        ends.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends))

    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    with pytest.raises(
        RuntimeError,
        match=r"a GradScaler has come.* between backward\(\) and step\(\).*optimizer\.synchronize\(\) first",
    ):
        scaler.step(optimizer)
    optimizer.zero_grad()  # nothing is in flight
    _small_step(model, optimizer)


def _changed_gradients() -> None:
    """Clipping without synchronize(): it was wrong before, and is said now."""
    model, optimizer = _small()
    model(torch.ones(2, 3)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with pytest.raises(RuntimeError, match=r"gradient Gradient\..* was changed.*skip_synchronize\(\)"):
        optimizer.step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.finish_step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


class _CountsUntried(torch.optim.SGD):
    """Keeps what counts for all parameters, and cannot be tried: it uses the real parameters."""

    def __init__(self, parameters: Any, in_options: bool) -> None:
        self.all, self.steps, self.in_options = list(parameters), 0, in_options
        super().__init__(self.all, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        assert self.all[0].grad.isfinite().all()
        if not self.in_options:
            self.steps += 1
        for group in self.param_groups if self.in_options else ():
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


class _ClipsAll(torch.optim.SGD):
    """Uses parameters that it was not asked to update."""

    def __init__(self, parameters: Any) -> None:
        self.all = list(parameters)
        super().__init__(self.all, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.all, 1.0)
        return super().step(closure)


def _optimizers_that_need_all() -> None:
    bps.init()
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for in_options, where in ((True, r"param_groups\[0\]"), (False, "its attributes")):
        optimizer = bps.DistributedOptimizer(_CountsUntried(model.parameters(), in_options), overlap_forward=model)
        with pytest.raises(ValueError, match=rf"step\(\) changes {where} \(steps\).*without overlap_forward"):
            _small_step(model, optimizer)
        optimizer.forget_gradients()
    optimizer = bps.DistributedOptimizer(_ClipsAll(model.parameters()), overlap_forward=model)
    _small_step(model, optimizer)
    with nothing_is_home():
        _small_step(model, optimizer)
        with pytest.raises(RuntimeError, match=r"uses parameters other than.*without overlap_forward"):
            model(torch.ones(2, 3))


def _script() -> None:
    """TorchScript within the model: its parameters are waited for in step()."""
    model, optimizer = _small(overlap_forward=None)
    bps.init()
    scripted = nn.Sequential(torch.jit.script(copy.deepcopy(model)))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(scripted.parameters(), lr=0.125, momentum=0.5), overlap_forward=scripted
    )
    state = optimizer.state
    with nothing_is_home():
        for _ in range(2):
            _small_step(scripted, optimizer)
        assert not _held(scripted)
    assert len(state) == 4


def _around_everything() -> None:
    """A traced copy shares the parameters, and nothing sees that it uses them: the backward pass does."""
    model, optimizer = _small()
    traced = torch.jit.trace(model, torch.zeros(2, 3))
    with nothing_is_home():
        _small_step(model, optimizer)
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match=r"reached Gradient\.2\..*still on its way.*finish_step\(\)"):
            traced(torch.ones(2, 3)).sum().backward()
        optimizer.finish_step()
        optimizer.synchronize()


def _failed_tensor() -> None:
    """The ranks disagree about one tensor: who waits for it hears it, all else is updated, and training goes on."""
    model, optimizer = _small()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if bps.rank() == 0:
        with nothing_is_home():
            model.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            assert model[2].bias.abs().sum() > 0  # another one
            with pytest.raises(bps.FailedPreconditionError, match=r"Gradient\.0\.weight"):
                model(torch.ones(2, 3))
    else:
        handles = [
            bps.push_pull_async(torch.zeros(size), name=f"Gradient.{name}")
            for name, size in zip(ALL, ((4, 4), (4,), (2, 4), (2,)))
        ]
        with pytest.raises(bps.FailedPreconditionError, match=r"Gradient\.0\.weight"):
            bps.synchronize(handles[0])
        for handle in handles[1:]:
            bps.synchronize(handle)
    assert not _held(model)
    changed = [not torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before)]
    assert changed == ([False, True, True, True] if bps.rank() == 0 else [False] * 4)
    _small_step(model, optimizer)
    optimizer.finish_step()


BODIES = [
    _waits_only_for_what_is_used,
    _what_is_home_is_updated_at_once,
    _another_thread_uses_it,
    _dropped_before_the_update,
    _shutdown_before_the_update,
    _a_forked_child_uses_it,
    _interrupted,
    _other_classes,
    _step_hooks,
    _grad_scaler,
    _changed_gradients,
    _optimizers_that_need_all,
    _script,
    _around_everything,
    _failed_tensor,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _in_buffers(overlap: bool, set_to_none: bool) -> tuple[list[torch.Tensor], int]:
    """Gradients of a size that has buffers of its own, which change places."""
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 300), nn.Tanh(), nn.Linear(300, 3))
    optimizer = bps.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), model.named_parameters(), overlap_forward=model if overlap else None
    )
    places = set()
    for step in range(6):
        generator = torch.Generator().manual_seed(2 * step + bps.rank())
        model(torch.randn(8, 64, generator=generator)).square().sum().backward()
        with nothing_is_home():
            optimizer.step()
        assert bool(_held(model)) == (overlap and step > 0)
        optimizer.zero_grad(set_to_none)
        optimizer.finish_step()
        if not set_to_none:
            places.add(model[0].weight.grad.data_ptr())
    return [parameter.detach() for parameter in model.parameters()], len(places)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_in_buffers(set_to_none: bool, run_workers: RunWorkers) -> None:
    without, overlapped = (
        run_workers(_in_buffers, overlap, set_to_none, servers=0).results for overlap in (False, True)
    )
    for (ours, places), (expected, _) in zip(overlapped, without):
        assert all(torch.equal(a, b) for a, b in zip(ours, expected))
        assert places == (0 if set_to_none else 2)


def _forward_beneath() -> bool:
    """Rank 1 gives its gradient of the last layer only after rank 0 has been through the first layer of the next
    forward pass. Whether the last layer's gradient was still on its way there."""
    model, optimizer = _small()
    _small_step(model, optimizer)
    optimizer.finish_step()
    if bps.rank() == 1:
        for name, size in zip(ALL, ((4, 3), (4,), (2, 4), (2,))):
            if name == "2.weight":
                bps.broadcast(torch.zeros(1), 0, name="rank 0 is in the next forward pass")
            bps.push_pull(torch.zeros(size), name=f"Gradient.{name}")
        return True
    _small_step(model, optimizer)
    seen: list[bool] = []

    def told(module: nn.Module, inputs: Any, output: Any) -> None:
        seen.append("2.weight" in _held(model) and not {"0.weight", "0.bias"} & set(_held(model)))
        bps.broadcast(torch.ones(1), 0, name="rank 0 is in the next forward pass")

    model[0].register_forward_hook(told)
    model(torch.ones(1, 3))
    assert not _held(model)
    return seen == [True]


def test_the_forward_pass_goes_on_while_a_gradient_is_on_its_way(run_workers: RunWorkers) -> None:
    assert run_workers(_forward_beneath, BYTEPS_OP_TIMEOUT="60").results == [True, True]


def _a_peer_dies() -> str:
    model, optimizer = _small()
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    if bps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # behind some of the gradients, perhaps
    with pytest.raises(bps.BytePSError) as caught:
        optimizer.step()
        for _ in range(3):  # the rest of its gradients may have been there
            _small_step(model, optimizer)
    # Everything can still be read, and saved.
    assert not _held(model)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert optimizer.state_dict()["state"]
    optimizer.finish_step()
    return str(caught.value)


def test_a_peer_dies(run_workers: RunWorkers) -> None:
    job = run_workers(_a_peer_dies, check=False)
    assert job.results[0] is not None, job.output
    assert "rank 1" in job.results[0]


def _a_peer_dies_beneath() -> str:
    """As above, but this rank is in its next forward pass then."""
    model, optimizer = _small()
    if bps.rank() == 1:
        for name, size in zip(ALL[:2], ((4, 3), (4,))):
            bps.push_pull(torch.zeros(size), name=f"Gradient.{name}")
        bps.broadcast(torch.zeros(1), 0, name="rank 0 is in the next forward pass")
        os.kill(os.getpid(), signal.SIGKILL)
    _small_step(model, optimizer)
    first = model[0](torch.ones(1, 3))
    bps.broadcast(torch.ones(1), 0, name="rank 0 is in the next forward pass")
    with pytest.raises(bps.UnavailableError) as caught:
        model[2](torch.tanh(first))
    assert not _held(model)
    model[2](torch.tanh(first))
    return str(caught.value)


def test_a_peer_dies_during_the_next_forward_pass(run_workers: RunWorkers) -> None:
    job = run_workers(_a_peer_dies_beneath, check=False, BYTEPS_OP_TIMEOUT="60")
    assert job.results[0] is not None, job.output
    assert "rank 1" in job.results[0]


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


def _sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1, **options)


@pytest.mark.parametrize(
    ("make", "overlap", "error", "message"),
    [
        (_lbfgs, None, ValueError, "LBFGS updates all parameters at once"),
        (functools.partial(_sgd, differentiable=True), None, ValueError, "differentiable"),
        (_sgd, True, TypeError, "overlap_forward is a bool; it must be the torch.nn.Module"),
        (_sgd, nn.Linear(1, 1), ValueError, "none of the optimizer's parameters"),
    ],
)
def test_refused(alone: None, make: Any, overlap: Any, error: type[Exception], message: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(error, match=message):
        bps.DistributedOptimizer(make(model), overlap_forward=model if overlap is None else overlap)


def test_alone_it_does_what_the_optimizer_does(alone: None) -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(_sgd(model), overlap_forward=model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.finish_step()
    assert not _held(model)
    assert not model._forward_pre_hooks
