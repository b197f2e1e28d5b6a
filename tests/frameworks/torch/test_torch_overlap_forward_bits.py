"""DistributedOptimizer(overlap_forward=model): the bits of training without it, whatever the loop and the optimizer."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from jobs import Outcomes
from late_gradients import nothing_is_home
from torch import nn

RunWorkers = Callable[..., Any]

STEPS = 5


class _Net(nn.Module):
    """Parameters in use in every way: by modules, by a parent, by a parent on behalf of its child, tied, in a list that
    the trainer keeps, in a function of autograd's, frozen, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.functional = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight
        self.kept = [self.functional.bias]  # of no module's call

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embedding(tokens) * self.scale
        with torch.autocast("cpu", enabled=False):  # torch has no LSTM in bfloat16 for processors without AVX-512
            values = self.lstm(values)[0]
        values = values + self.attention(values, values, values, need_weights=False)[0]
        values = self.frozen(self.hidden(self.norm(values)))
        values = _Times.apply(values.float(), self.functional.weight) + self.kept[0]
        return self.out(values)


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return values @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, weight = ctx.saved_tensors
        gradient = gradients[0].to(values.dtype)
        return gradient @ weight.t(), torch.einsum("abi,abj->ij", values, gradient)


def _split(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of parameters."""
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    return [{"params": plain, "lr": 0.003, "weight_decay": 0.0}, {"params": rest}]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "SGD foreach": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "SGD of a tensor": lambda groups: torch.optim.SGD(groups, lr=torch.tensor(0.1), momentum=0.5),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "Adam fused": functools.partial(torch.optim.Adam, lr=0.01, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True, foreach=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.01),
    "NAdam": functools.partial(torch.optim.NAdam, lr=0.01),
    "Rprop": functools.partial(torch.optim.Rprop, lr=0.01),
}

Loop = Callable[["_Run", int], None]


@dataclass
class _Run:
    """A training, and what it has shown so far."""

    overlap: bool
    optimizer_name: str
    options: dict[str, Any]
    schedule: bool
    passes: int = 1
    shown: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.model = _Net()
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer: Any = bps.DistributedOptimizer(
            OPTIMIZERS[self.optimizer_name](_split(self.model)),
            self.model.named_parameters(),
            backward_passes_per_step=self.passes,
            overlap_forward=self.model if self.overlap else None,
            **self.options,
        )
        bps.broadcast_parameters(self.model.state_dict())
        bps.broadcast_optimizer_state(self.optimizer)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.7) if self.schedule else None

    def loss(self, step: int, number: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + 10 * number + bps.rank())
        tokens = torch.randint(11, (4, 6), generator=generator)
        return self.criterion(self.model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])

    def step(self) -> None:
        self.optimizer.step()
        if self.overlap and self.held_is_sure:
            names = [name for name, p in self.model.named_parameters() if type(p) is not nn.Parameter]
            assert len(names) > 10, "step() did not wait"
        if self.scheduler is not None:
            self.scheduler.step()

    held_is_sure = False

    def show(self, tensors: Any) -> None:
        self.shown += [tensor.detach().clone() for tensor in tensors]


def _plain(run: _Run, step: int) -> None:
    run.optimizer.zero_grad()
    for number in range(run.passes):
        run.loss(step, number).backward()
    run.step()


def _zero_in_place_behind_the_step(run: _Run, step: int) -> None:
    run.loss(step).backward()
    run.step()
    run.optimizer.zero_grad(set_to_none=False)


def _model_zero(run: _Run, step: int) -> None:
    run.model.zero_grad()
    run.loss(step).backward()
    run.step()


def _never_zero(run: _Run, step: int) -> None:
    run.loss(step).backward()
    run.step()


def _regularized(run: _Run, step: int) -> None:
    """Uses every parameter through a list, before the model does."""
    run.optimizer.zero_grad()
    parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    penalty = sum(parameter.abs().sum() for parameter in parameters if parameter.requires_grad)
    (run.loss(step) + 0.01 * penalty).backward()
    run.step()


def _watched(run: _Run, step: int) -> None:
    """Everything that users look at between steps."""
    _plain(run, step)
    what = step % 10
    model, optimizer = run.model, run.optimizer
    if what == 0:
        run.show(model.state_dict().values())
    elif what == 1:
        states = optimizer.state_dict()["state"]
        run.show(value for state in states.values() for value in state.values() if isinstance(value, torch.Tensor))
    elif what == 2:
        run.show(
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
        )
    elif what == 3:
        model.eval()
        with torch.no_grad():
            run.show([run.loss(99)])
        with torch.inference_mode():
            run.show([run.loss(98)])
        model.train()
    elif what == 4:
        copied = copy.deepcopy(model)
        assert all(type(parameter) is nn.Parameter for parameter in copied.parameters())
        run.show(copied.parameters())
        run.show([copy.deepcopy(model)(torch.zeros(1, 2, dtype=torch.int64))])
    elif what == 5:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        run.show(torch.load(file, weights_only=False).parameters())
    elif what == 6:
        bps.broadcast_parameters(model.named_parameters())
        bps.broadcast_optimizer_state(optimizer)
        run.show(model.parameters())
    elif what == 7:
        run.show(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
        run.show([torch.nn.utils.parameters_to_vector(model.parameters())])
    elif what == 8:
        state, options = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        _plain(run, 97)
        model.load_state_dict(state)
        optimizer.load_state_dict(options)
    elif what == 9:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        run.show([torch.from_numpy(model.scale.detach().numpy())])


def _clipped_and_closures(run: _Run, step: int) -> None:
    if step % 3 == 0:
        _plain(run, step)
    elif step % 3 == 1:
        run.optimizer.zero_grad()
        run.loss(step).backward()
        run.optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        with run.optimizer.skip_synchronize():
            run.optimizer.step()
    else:

        def closure() -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(step)
            loss.backward()
            return loss

        run.show([run.optimizer.step(closure)])


def _in_modes(run: _Run, step: int) -> None:
    """The forward pass, and with it the updates, inside modes that are not for updates. The optimizer makes its state
    of some parameters there."""
    run.optimizer.zero_grad()
    if step == 2:
        run.model.frozen.requires_grad_(True)
    if step % 2:
        with torch.inference_mode():
            run.show([run.loss(step)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = run.loss(step)
    loss.backward()
    run.step()


def _thawed(run: _Run, step: int) -> None:
    """Another set of parameters is trained from some step on."""
    if step == 2:
        run.model.frozen.requires_grad_(True)
        run.model.hidden.requires_grad_(False)
    if step == 3:
        new = run.model.new = nn.Parameter(torch.ones(8))
        run.optimizer.add_param_group({"params": [new], "lr": 0.2})
        run.model.norm.register_forward_hook(lambda module, inputs, output: output * new)
    _plain(run, step)


def _same(loop: Loop, optimizer: str = "SGD", schedule: bool = True, passes: int = 1, **options: Any) -> None:
    """Trains without and with overlap; all parameters after each step are the same bits, and all that is shown."""
    bps.init()
    torch.set_num_threads(1)
    for late in (False, True):
        runs = []
        for overlap in (False, True):
            run = _Run(overlap, optimizer, options, schedule, passes)
            with nothing_is_home(late):
                for step in range(10 if loop is _watched else STEPS):
                    run.held_is_sure = late and step > 0
                    loop(run, step)
                    if step == STEPS - 2:
                        run.show(run.model.parameters())
                run.show(run.model.parameters())
            runs.append(run)
        without, overlapped = (run.shown for run in runs)
        assert len(without) == len(overlapped)
        for number, (ours, expected) in enumerate(zip(overlapped, without)):
            assert torch.equal(ours, expected), (number, late)
        assert all(parameter.isfinite().all() for parameter in runs[1].model.parameters())


def _case(name: str, *arguments: Any, **keywords: Any) -> Callable[[], None]:
    def body() -> None:
        _same(*arguments, **keywords)

    body.__name__ = body.__qualname__ = name
    globals()[name] = body  # where the workers look for it
    return body


BODIES = [
    *(_case(f"_{name.replace(' ', '_')}", _plain, name) for name in OPTIMIZERS),
    _case("_without_schedule", _plain, schedule=False),
    _case("_passes", _plain, passes=3),
    _case("_fp16", _plain, compression=bps.Compression.fp16),
    _case("_sum", _plain, "Adam", op=bps.Sum),
    _case("_zero_in_place", _zero_in_place_behind_the_step),
    _case("_zero_in_place_without_buffers", _zero_in_place_behind_the_step, gradient_buffers=False),
    _case("_zero_by_the_model", _model_zero),
    _case("_no_zero", _never_zero),
    _case("_uses_before_the_model", _regularized),
    _case("_looks", _watched, "Adam"),
    _case("_clips_and_closures", _clipped_and_closures),
    _case("_modes", _in_modes, "Adam"),
    _case("_thaws", _thawed),
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
