"""DistributedOptimizer: an optimizer whose gradients are reduced over all workers during the backward pass."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from byteps.basics import info
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.forward_order import ForwardOrder
from byteps.torch.functions import wait_all
from byteps.torch.gradient_buffers import GradientBuffers
from byteps.torch.handle import Handle
from byteps.torch.ops import declare, push_pull_async_into

import torch


class _InFlight:
    """A gradient on its way: the operation, and how its result becomes the gradient."""

    def __init__(
        self,
        handle: Handle,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        sent: torch.Tensor,
        received: torch.Tensor,
        context: Any,
    ) -> None:
        self.handle = handle
        self.parameter = parameter
        self.gradient = gradient
        self.sent = sent
        self.received = received
        self.context = context

    def finish(self, compression: type[Compressor]) -> None:
        """Call after the handle was synchronized."""
        if self.received is not self.sent:
            self.parameter.grad = self.received
        elif self.sent is not self.gradient:
            self.gradient.detach().copy_(compression.decompress(self.sent, self.context))


class _Reducer:
    """The part of a DistributedOptimizer that knows the gradients: names, priorities, hooks, what is in flight."""

    def __init__(
        self, compression: type[Compressor], backward_passes_per_step: int, op: ReduceOp, gradient_buffers: bool
    ) -> None:
        self.compression = compression
        self.op = op
        self.backward_passes_per_step = backward_passes_per_step
        self.buffers = GradientBuffers(gradient_buffers)
        self.names: dict[torch.Tensor, str] = {}
        self.priorities: dict[torch.Tensor, int] = {}
        self.in_flight: dict[torch.Tensor, _InFlight] = {}
        self._passes_left: dict[torch.Tensor, int] = {}
        self._hooks: list[Any] = []
        self._forward_order: ForwardOrder | None = None  # while it is being learned

    def learn_order(self) -> None:
        """Watches the passes of the first iteration: what the forward pass uses first is the most urgent afterwards."""
        self._forward_order = ForwardOrder(self.names)

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Takes care of a parameter from now on. Until the order of the forward pass is known, the first added is the
        most urgent: mostly the forward pass needs it first, and the backward pass gives it last."""
        self.names[parameter] = name
        self.priorities[parameter] = -len(self.priorities)
        if self._forward_order is not None:
            self._forward_order.add(parameter)
        if parameter.requires_grad:
            self._watch(parameter)

    def _watch(self, parameter: torch.Tensor) -> None:
        """Sees the gradients of a parameter from now on."""
        self._passes_left[parameter] = self.backward_passes_per_step
        sent, _ = self.compression.compress(torch.empty(0, dtype=parameter.dtype))
        declare(self.names[parameter], torch.empty(parameter.shape, dtype=sent.dtype, device="meta"))

        # The hook must not keep the optimizer alive: a model may outlive it.
        reducer = weakref.ref(self)

        def hook(ready: torch.Tensor) -> None:
            alive = reducer()
            if alive is not None:
                alive.gradient_ready(ready)

        self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._forward_order is not None:
            self._forward_order.close()
            self._forward_order = None

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient has been accumulated."""
        left = self._passes_left[parameter]
        assert left > 0 and parameter not in self.in_flight, (
            f"the gradient of {self.names[parameter]} was computed more than backward_passes_per_step="
            f"{self.backward_passes_per_step} times before step(). Raise it to accumulate gradients."
        )
        self._passes_left[parameter] = left - 1
        if left == 1:
            if self._forward_order is not None:
                self._forward_order.gradient_ready(parameter)
            self._start(parameter)

    def _start(self, parameter: torch.Tensor) -> None:
        gradient = self.buffers.gradient(parameter)
        sent, context = self.compression.compress(gradient)
        # What compression has made is memory of its own already.
        received = self.buffers.output(parameter, gradient) if sent is gradient else sent
        handle = push_pull_async_into(
            sent, received, name=self.names[parameter], priority=self.priorities[parameter], op=self.op
        )
        self.in_flight[parameter] = _InFlight(handle, parameter, gradient, sent, received, context)

    def synchronize(self) -> None:
        """Waits until every gradient holds the reduction. One that the backward pass did not reach is sent now: the
        other ranks may have one, and wait for ours."""
        try:
            for parameter in self.names:
                if parameter.requires_grad and parameter not in self._passes_left:
                    self._watch(parameter)  # was frozen until now
                frozen = not parameter.requires_grad and parameter.grad is None
                if not frozen and parameter not in self.in_flight:
                    self._start(parameter)
        finally:
            # Whatever goes wrong, no operation may still write into a gradient that the user gets back.
            in_flight = list(self.in_flight.values())
            self.in_flight.clear()
            self.reset()
            wait_all(item.handle for item in in_flight)
        for item in in_flight:
            item.finish(self.compression)
        if self._forward_order is not None and self._forward_order.seen:
            order, self._forward_order = self._forward_order.close(), None
            self.priorities = {parameter: -position for position, parameter in enumerate(order)}

    def reset(self) -> None:
        """Starts counting backward passes anew."""
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.backward_passes_per_step


class _DistributedOptimizer(torch.optim.Optimizer):
    """What a DistributedOptimizer adds to the optimizer's own class, whose methods come after these."""

    _reducer: _Reducer
    _is_distributed: bool
    _synchronized: bool
    _should_synchronize: bool
    _unnamed: str  # what the names of parameters without one begin with

    def synchronize(self) -> None:
        """Waits until the gradients hold the reduction over all workers. step() does it; call it before to read or clip
        the gradients, then step() inside skip_synchronize().

        Raises:
            BytePSError: see byteps.torch.synchronize(). No operation is in flight then; the gradients are unspecified.
        """
        if self._is_distributed:
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() inside this does not synchronize; for after a synchronize() of one's own."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduces gradients after this many accumulations from now on. Call it between step() and backward()."""
        _check_passes(passes)
        self._reducer.backward_passes_per_step = passes
        self._reducer.reset()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients, then takes the optimizer's own step. With a closure, the gradients of each of its
        evaluations are waited for."""
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)

        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "The gradients are reduced a second time, which takes time and, with op=Sum, changes them.",
                stacklevel=2,
            )
        if closure is None or self._reducer.in_flight:
            self.synchronize()
        self._synchronized = False
        if closure is None:
            return super().step()

        given = closure

        def synchronized() -> Any:
            loss = given()
            self.synchronize()
            self._synchronized = False
            return loss

        return super().step(synchronized)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's own.

        Raises:
            AssertionError: gradients are on their way.
        """
        assert not self._reducer.in_flight, (
            "optimizer.zero_grad() was called after loss.backward() and before optimizer.step() or "
            "optimizer.synchronize(): the gradients are being reduced, and must not change meanwhile"
        )
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the new parameters are reduced too, named by their number."""
        super().add_param_group(param_group)
        if not self._is_distributed:
            return
        group = len(self.param_groups) - 1
        for index, parameter in enumerate(self.param_groups[-1]["params"]):
            self._reducer.add(parameter, f"{self._unnamed}.group.{group}.{index}")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own; gradients on their way are waited for, and counting starts anew."""
        if self._reducer.in_flight:
            self.synchronize()
        self._reducer.reset()
        self._synchronized = False
        super().load_state_dict(state_dict)


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step is {passes!r}; it must be a positive integer")


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, unnamed: str
) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters with the names of their gradients, most urgent first."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"{unnamed}.{index}", parameter) for index, parameter in enumerate(parameters)]

    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters must be a sequence of (name, parameter), such as model.named_parameters()")
    if any(not isinstance(name, str) or not isinstance(tensor, torch.Tensor) for name, tensor in named):
        raise ValueError(
            "named_parameters must have a string and a tensor in each entry, such as model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
    if twice:
        raise ValueError(f"named_parameters has names twice: {', '.join(twice)}")

    known = {parameter for _, parameter in named}
    missing = sum(parameter not in known for parameter in parameters)
    if missing:
        raise ValueError(
            f"named_parameters lacks {missing} of the optimizer's {len(parameters)} parameters; "
            "name all of them or none"
        )
    ours = set(parameters)
    result: dict[torch.Tensor, str] = {}
    for name, parameter in named:
        if parameter in ours:
            result.setdefault(parameter, "Gradient." + name)  # tied weights have several names; the first counts
    return [(name, parameter) for parameter, name in result.items()]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_buffers: bool = True,
) -> _DistributedOptimizer:
    """Makes an optimizer reduce its gradients over all workers before each step.

    The reduction of each gradient starts while the backward pass still computes the others, and the parameters that the
    next forward pass needs first go first, as the first forward pass has shown::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * bps.size())
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)

    Args:
        optimizer: any torch.optim.Optimizer. Its state and options are shared, not copied; use the result from now on.
        named_parameters: such as model.named_parameters(): names of all the parameters, the same on all ranks. None:
            numbered, which needs optimizers to be made in the same order on all ranks.
        compression: Compression.none or Compression.fp16.
        backward_passes_per_step: gradients are sent after this many accumulations; they are not divided by it.
        op: Average or Sum, or another reduction.
        gradient_buffers: where the workers of the host reduce among themselves, sums of large gradients go into memory
            of BytePS's own, which becomes p.grad: another tensor than the one that was there before. It is fastest with
            zero_grad(set_to_none=False), when autograd accumulates into that memory. False: sums replace gradients in
            place, and no memory is used for them.

    Returns:
        An instance of a subclass of the optimizer's own class, with synchronize(), skip_synchronize() and
        set_backward_passes_per_step() besides. A parameter without a gradient in a step contributes zeros. With one
        worker and no servers it does what the optimizer itself does.

    Raises:
        ValueError: before init(); `named_parameters` is not made of pairs, names something twice, or leaves parameters
            out; `backward_passes_per_step` is not positive.
        TypeError: `optimizer` or `compression` is something else.
        AssertionError: in backward(), when a gradient is computed more than backward_passes_per_step times before
            step(); in zero_grad(), while gradients are on their way.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer")
    check_compression(compression)
    _check_passes(backward_passes_per_step)
    op = choose_op(op, average=True)
    number = current_session().number("DistributedOptimizer")
    unnamed = f"Gradient.noname.{number}"
    names = _names(optimizer, named_parameters, unnamed)
    job = info()

    subclass: Any = type(type(optimizer).__name__, (_DistributedOptimizer, type(optimizer)), {})
    distributed: _DistributedOptimizer = subclass.__new__(subclass)
    # Shares the state, the options and the hooks. A learning-rate scheduler wraps `step` of the instance it was made
    # for; that wrapper would hide ours.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed._is_distributed = job.size > 1 or job.num_servers > 0
    distributed._synchronized = False
    distributed._should_synchronize = True
    distributed._unnamed = unnamed
    distributed._reducer = _Reducer(compression, backward_passes_per_step, op, gradient_buffers)
    if distributed._is_distributed:
        for name, parameter in names:
            distributed._reducer.add(parameter, name)
        distributed._reducer.learn_order()
    weakref.finalize(distributed, distributed._reducer.close)
    return distributed
