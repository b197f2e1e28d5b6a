"""A DistributedOptimizer whose step() waits for nothing: what of it remains is done beneath the next forward pass.

step() leaves every parameter held whose gradient is not home yet (held_parameter.py). Just before a module's forward,
its own parameters are waited for and updated; the gradients of later modules are on their way meanwhile. Any other use
of a parameter, by whatever code, waits for this parameter, and sees it updated.

On a GPU every update is in the stream that was current at step(), whichever waits for it, so that they come one after
the other, as without overlap; a stream that waits for a parameter goes on behind them.

An update of some parameters is the optimizer's own step() with `param_groups` that hold only these, and the options as
they were when the user called step(). That is right for every optimizer that updates each parameter by its own gradient
and state alone, and gives the same bits. One that reaches for the others finds them held, and is told so.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from byteps.torch import device_streams
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compiling import not_compiled
from byteps.torch.device_streams import check_not_capturing
from byteps.torch.held_parameter import can_hold, hold, release
from byteps.torch.in_place import InPlace
from byteps.torch.independent_updates import check_independent, check_kept
from byteps.torch.optimizer_changes import changed, options
from byteps.torch.reducer import InFlight
from byteps.torch.transform_arguments import watch_transforms

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.optim import optimizer as torch_optimizer

# So many that have not come home are asked for in vain before the rest is left for another time.
_MAX_UNREADY_POLLS = 8

_REFUSAL = "Make the DistributedOptimizer without overlap_forward."


def check_overlap(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Refuses what cannot be updated parameter by parameter. Raises TypeError, ValueError."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"overlap_forward is a {type(model).__name__}; it must be the torch.nn.Module whose forward pass waits for "
            "the updates, or None"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"torch.optim.LBFGS updates all parameters at once, not one after the other. {_REFUSAL}")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError(f"a differentiable step() belongs to the graph of the forward pass around it. {_REFUSAL}")
    ours = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if ours.isdisjoint(model.parameters()):
        raise ValueError("overlap_forward has none of the optimizer's parameters; give the model that they belong to")
    check_independent(optimizer, _REFUSAL)


def _autocasts(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except TypeError:  # PyTorch before 2.4
        return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


@contextmanager
def _as_in_training() -> Iterator[None]:
    """As if step() ran where users call it, whatever the forward pass has around it: modes that watch operations, types
    of lower precision, inference, transforms of torch.func, a trace of torch.jit."""
    with ExitStack() as stack:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        trace = torch._C._get_tracing_state()
        if trace is not None:
            torch._C._set_tracing_state(None)
            stack.callback(torch._C._set_tracing_state, trace)
        if torch._C._len_torch_dispatch_stack() > 0:
            stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
        for device in ("cpu", "cuda"):
            if _autocasts(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        yield


def _no_hook(module: torch.nn.Module, inputs: Any) -> None:
    """The hook of a copied module, whose parameters belong to no optimizer."""


def _make_no_hook() -> Callable[[torch.nn.Module, Any], None]:
    return _no_hook


def _wait(reference: weakref.ref[OverlappedOptimizer], module: torch.nn.Module, below: bool) -> None:
    optimizer = reference()
    if optimizer is None:
        return
    # In this order: what is not pending any more is being updated, by another thread, or has been.
    if not optimizer._reducer.pending and not optimizer._overlap.updating:
        if below or module._parameters:
            optimizer.follow()
        return
    # Without gradients, modules look for fused functions, which they do not use if one of their parameters is held
    # (torch.nn.MultiheadAttention looks at those of its children): other bits.
    below = below or not torch.is_grad_enabled()
    parameters = module.parameters() if below else module._parameters.values()
    own = [parameter for parameter in parameters if parameter is not None]
    if own:
        optimizer.settle(own)


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile, or its method compile(), has made the module one of a piece."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _waiting_modules(module: torch.nn.Module, seen: set[torch.nn.Module]) -> Iterator[tuple[torch.nn.Module, bool]]:
    """The modules that wait before their forward, and whether for the modules within, too."""
    if module in seen or isinstance(module, torch.jit.ScriptModule):  # these have no hooks
        return
    seen.add(module)
    compiled = _is_compiled(module)
    yield module, compiled
    if not compiled:
        for child in module.children():
            yield from _waiting_modules(child, seen)


class _WaitBefore:
    """A hook of a module: waits before its forward."""

    def __init__(self, optimizer: OverlappedOptimizer, below: bool) -> None:
        """`below`: also for the parameters of the modules within."""
        # The hook must not keep the optimizer alive: a model may outlive it.
        self._optimizer = weakref.ref(optimizer)
        self._below = below
        self._wait = not_compiled(_wait)

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._wait(self._optimizer, module, self._below)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _no_hook

    def __reduce__(self) -> Any:
        return _make_no_hook, ()


def _zero(parameter: torch.Tensor, set_to_none: bool) -> None:
    """What Optimizer.zero_grad() does to one parameter."""
    gradient = parameter.grad
    if set_to_none or gradient is None:
        parameter.grad = None
        return
    if gradient.grad_fn is not None:
        gradient.detach_()
    else:
        gradient.requires_grad_(False)
    gradient.zero_()


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


class _Stream:
    """A stream of a GPU: its handle, and what within() takes."""

    def __init__(self, index: int) -> None:
        """The current one."""
        self.handle = device_streams.STREAMS.current(index)
        self.stream = device_streams.STREAMS.current_stream(index)


class _Overlap:
    """What an OverlappedOptimizer remembers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # of all below, and of what is pending
        self.updating = False
        self.can_split = False  # a step has shown nothing that speaks against updates of some parameters
        self.splits = False  # steps like the last one do so
        self.warned = False
        self.unseen: set[torch.Tensor] = set()  # parameters that code without Python uses; they are never held
        # Of the last step():
        self.options: list[dict[str, Any]] = []  # of the groups
        self.places: dict[torch.Tensor, tuple[int, int]] = {}  # of the parameters: group, position
        self.zero: dict[torch.Tensor, bool] = {}  # zero_grad() has come for these; set_to_none
        self.streams: dict[int, _Stream] = {}  # that was current, of each GPU with parameters
        # The last update on each GPU: its stream, and a mark behind it. Replaced as a whole, and read without the lock.
        self.updated: dict[int, tuple[_Stream, Any]] = {}


class OverlappedOptimizer(BaseOptimizer):
    """What a DistributedOptimizer with overlap_forward adds to the optimizer's own class."""

    UNCOMPILED = ("synchronize", "step", "settle")

    _overlap: _Overlap

    def _begin(self, model: torch.nn.Module) -> None:
        """The last act of the optimizer's making."""
        watch_transforms()
        self._overlap = _Overlap()
        hooks: list[Any] = []
        ours = set(self._reducer.names)
        for module, below in _waiting_modules(model, set()):
            if not ours.isdisjoint(module.parameters()):
                hooks.append(module.register_forward_pre_hook(_WaitBefore(self, below), prepend=True))
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                self._overlap.unseen.update(module.parameters())
        weakref.finalize(self, _remove, hooks)

    # What the user calls.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step without waiting for the gradients: each parameter is updated when its gradient has
        come home, at the latest just before it is used. The options (the learning rate) are those of now.

        The first step waits, and so does one with a closure, inside skip_synchronize(), or while the optimizer has step
        hooks.

        Raises:
            BytePSError: see byteps.torch.synchronize(). Also the next forward pass raises it, or whatever else uses a
                parameter. Parameters whose gradients have failed keep their values, all others are updated; nothing is
                in flight then.
            RuntimeError: a gradient was changed, or a GradScaler used, between backward() and step() without
                synchronize().
        """
        try:
            self.finish_step()
        except Exception:
            if self._should_synchronize:
                super().synchronize()  # nothing may stay in flight, here and at the other ranks
            raise
        if closure is not None or not self._should_synchronize or self._has_hooks():
            self._overlap.splits = False
            return super().step(closure)
        if not self._overlap.can_split:
            result = self._first_step()
            self._overlap.splits = True  # from the next one on
            return result
        self._warn_if_synchronized()
        self._synchronized = False
        touched = self._reducer.touched()
        if touched is not None:
            self._refuse(f"the gradient {touched} was changed")
        items = self._reducer.launch()
        self._reducer.finish_learning()
        self._overlap.splits = True
        # What is not reduced has nothing to wait for.
        self._split(items, [p for group in self.param_groups for p in group["params"]])
        return None

    step.hooked = True  # type: ignore[attr-defined]  # see BaseOptimizer.step

    def _split(self, items: Sequence[InFlight | InPlace], others: Sequence[torch.Tensor] = ()) -> None:
        """Of the gradients of a step: updates what is home, and has the rest updated when it is. `others`: parameters
        that are updated at once, those of the gradients left out."""
        with self._overlap.lock:
            self._overlap.options = options(self.param_groups)
            self._overlap.places = {
                parameter: (number, position)
                for number, group in enumerate(self.param_groups)
                for position, parameter in enumerate(group["params"])
            }
            self._overlap.zero.clear()
            gpus = {device_streams.STREAMS.gpu(parameter) for parameter in self._overlap.places}
            self._overlap.streams = {index: _Stream(index) for index in gpus if index is not None}
            for item in items:
                self._reducer.pending[item.parameter] = item
            # What is home is updated at once, in one go; so is what cannot be held.
            now = [p for p in others if p not in self._reducer.pending]
            for item in items:
                seen = can_hold(item.parameter) and item.parameter not in self._overlap.unseen
                if item.handle.poll() or not seen:
                    now.append(item.parameter)
                else:
                    hold(item.parameter, self)
            self._update(now)

    def finish_step(self) -> None:
        """Waits until all parameters are updated. Raises what step() does."""
        if self._reducer.pending or self._overlap.updating:
            self.settle(list(self._reducer.pending))
        else:
            self.follow()

    def synchronize(self) -> None:
        """Waits until the gradients hold the reduction over all workers; call it before to read or clip the gradients,
        then step() inside skip_synchronize(), which then does not overlap. (To wait for the updates of a step, call
        finish_step().)

        Raises:
            BytePSError: see byteps.torch.synchronize(). No operation is in flight then; the gradients are unspecified.
        """
        try:
            self.finish_step()
        finally:
            super().synchronize()

    def forget_gradients(self, whole_step: bool = False) -> None:
        """Gives the step up, after an error; the next backward pass begins anew.

        Where step() overlaps, parameters whose gradients are home are updated, as the other ranks do; all others keep
        their values. One that is arriving at this moment may be updated on some ranks alone: broadcast_parameters()
        makes them equal again.

        If no backward pass has begun since step(), it is that step which is given up: parameters that it was still to
        update keep their values, except where the gradient is home already, which may differ between the ranks.
        broadcast_parameters() makes them equal again. With `whole_step` it is the next one, of which no gradient was
        computed.
        """
        with self._overlap.lock:
            pending = self._reducer.pending
            begun = self._reducer.has_begun
            # Behind a forward pass only what that did not use is left of the step before, which all ranks have taken.
            if not begun and not whole_step:
                for item in pending.values():
                    item.handle.cancel()
            with contextlib.suppress(Exception):  # of the step that is given up
                self.finish_step()
            if begun and self._overlap.splits and self._reducer.touched() is None:
                with contextlib.suppress(Exception):  # of what is not home
                    self._split(self._reducer.cancel())
                    self.finish_step()
                whole_step = False  # it was this one
            for parameter, item in list(pending.items()):  # the optimizer's own step has failed
                self._wait(item)
                release(parameter)
                del pending[parameter]
            self._overlap.zero.clear()
        super().forget_gradients(whole_step)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own. Gradients of parameters that are still to be updated become zero, or None, after
        that; where a class of the user's has no argument set_to_none, it waits until all are updated."""
        self._check_none_in_flight()
        set_to_none = self._sets_to_none(args, kwargs)
        if set_to_none is None:
            self.finish_step()
        with self._overlap.lock:
            self.follow()
            pending = self._reducer.pending
            for parameter in pending:
                self._overlap.zero[parameter] = bool(set_to_none) or self._overlap.zero.get(parameter, False)
            groups = [
                {**group, "params": [p for p in group["params"] if p not in pending]} for group in self.param_groups
            ]
            with self._only(groups):
                return super().zero_grad(*args, **kwargs)

    @property
    def state(self) -> Any:
        """The optimizer's state, after all updates."""
        if self._reducer.pending or self._overlap.updating:
            with self._overlap.lock:
                if not self._overlap.updating:
                    self.finish_step()
        else:
            self.follow()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__["state"] = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the new parameters are reduced too, named by their number."""
        self.finish_step()
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own; gradients on their way are waited for, and counting starts anew."""
        self.finish_step()
        super().load_state_dict(state_dict)

    # How it is done.

    def _has_hooks(self) -> bool:
        hooks = (
            self._optimizer_step_pre_hooks,
            self._optimizer_step_post_hooks,
            torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        )
        if not any(hooks):
            return False
        if not self._overlap.warned:
            self._overlap.warned = True
            warnings.warn(
                "the optimizer has step hooks (register_step_pre_hook, register_step_post_hook), which see a whole "
                "step: step() waits for all gradients, and overlap_forward does nothing",
                stacklevel=3,
            )
        return True

    def _first_step(self) -> Any:
        """A whole step, which shows whether the optimizer keeps something that counts for all parameters at once, where
        the trial has not."""
        before, counts = options(self.param_groups), self._numbers()
        result = super().step()
        for number, (old, new) in enumerate(zip(before, options(self.param_groups))):
            check_kept(self, f"param_groups[{number}]", changed(old, new), _REFUSAL)
        numbers = self._numbers()
        # A number that comes to be in the first step is no count of it.
        counts = {name: value for name, value in counts.items() if name in numbers}
        check_kept(self, "its attributes", changed(counts, {name: numbers[name] for name in counts}), _REFUSAL)
        self._overlap.can_split = True
        return result

    def _numbers(self) -> dict[str, Any]:
        """The attributes that may be counts."""
        return {name: value for name, value in vars(self).items() if type(value) in (int, float)}

    def settle(self, parameters: Sequence[torch.Tensor]) -> None:
        """Waits for the gradients of these parameters and updates them; others that have come home, too, while it
        waits. Those that have been updated are left alone. The current streams go on behind the updates."""
        with self._overlap.lock:
            pending = self._reducer.pending
            wanted = [parameter for parameter in dict.fromkeys(parameters) if parameter in pending]
            if not wanted:
                self.follow()
                return
            if self._overlap.updating:
                raise RuntimeError(
                    f"{type(self).__name__}.step() uses parameters other than those that it is to update "
                    f"({self._reducer.names[wanted[0]]}). {_REFUSAL}"
                )
            others = self._streams_elsewhere()
            if not others:
                self._settle(wanted)
                return
            for index in others:
                check_not_capturing(index, self._reducer.names[wanted[0]])
            try:
                with device_streams.STREAMS.within(others):
                    self._settle(wanted)
            finally:
                self.follow()

    def _settle(self, wanted: list[torch.Tensor]) -> None:
        """Of parameters that are pending, in the streams of step()."""
        pending = self._reducer.pending
        if not all(pending[parameter].handle.poll() for parameter in wanted):
            self._update(self._home())  # there is time for it
            wanted = [parameter for parameter in wanted if parameter in pending]
            for parameter in wanted:
                self._wait(pending[parameter])
        # Each call of the optimizer's step() costs, for many parameters hardly more than for one.
        self._update(list(dict.fromkeys([*wanted, *self._home()])))

    def _streams_elsewhere(self) -> dict[int, Any]:
        """The streams of step() that are not current now, by GPU."""
        return {
            index: of_step.stream
            for index, of_step in self._overlap.streams.items()
            if device_streams.STREAMS.current(index) != of_step.handle
        }

    def follow(self) -> None:
        """The current streams go on behind the updates so far."""
        for index, (of_step, mark) in self._overlap.updated.items():
            # A stream that is being captured runs nothing now, and waits for nothing outside of its graph.
            if device_streams.STREAMS.current(index) != of_step.handle and not device_streams.STREAMS.is_capturing(
                index
            ):
                device_streams.STREAMS.wait_for(mark, index)

    def _home(self) -> list[torch.Tensor]:
        """What has come home of what is pending. It comes in about the order in which it is pending, so that there is
        no need to ask all."""
        home, missed = [], 0
        for parameter, item in self._reducer.pending.items():
            if item.handle.poll():
                home.append(parameter)
                continue
            missed += 1
            if missed == _MAX_UNREADY_POLLS:
                break
        return home

    @staticmethod
    def _wait(item: InFlight | InPlace) -> None:
        """Until it has ended. If it has failed, that is for _update()."""
        with contextlib.suppress(Exception):
            item.handle.synchronize()

    def _update(self, parameters: list[torch.Tensor]) -> None:
        """Waits for the gradients of these, and takes the optimizer's step for them."""
        if not parameters:
            return
        pending = self._reducer.pending
        error: Exception | None = None
        try:
            for parameter in parameters:
                if parameter in pending:
                    pending[parameter].handle.synchronize()
        except Exception as first:  # raised below
            error = first
        failed = []
        if error is not None:
            # What another rank has updated is not undone. So that all come to the same: all that can be updated is.
            parameters = [parameter for parameter in parameters if parameter not in pending]
            for parameter, item in pending.items():
                try:
                    item.handle.synchronize()
                    parameters.append(parameter)
                except Exception:  # the first counts
                    failed.append(parameter)
        self._apply(parameters, failed)
        if error is not None:
            raise error

    def _apply(self, parameters: list[torch.Tensor], failed: list[torch.Tensor]) -> None:
        """Gradients are home: the optimizer's step for these parameters."""
        self._overlap.updating = True
        try:
            with _as_in_training():
                for parameter in failed:
                    release(parameter)
                    del self._reducer.pending[parameter]
                for parameter in parameters:
                    item = self._reducer.pending.pop(parameter, None)
                    if item is not None:
                        release(parameter)
                        item.finish(self._reducer.compression)
                with self._only(self._groups(parameters)):
                    super(BaseOptimizer, self).step()
                for parameter in (*parameters, *failed):
                    to_none = self._overlap.zero.pop(parameter, None)
                    if to_none is not None:
                        _zero(parameter, to_none)
        finally:
            self._overlap.updated = {
                index: (of_step, device_streams.STREAMS.mark(index)) for index, of_step in self._overlap.streams.items()
            }
            self._overlap.updating = False

    def _groups(self, parameters: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
        """Groups of these parameters alone, with the options of the last step()."""
        chosen: dict[int, list[torch.Tensor]] = {}
        for parameter in sorted(
            (p for p in parameters if p in self._overlap.places), key=self._overlap.places.__getitem__
        ):
            chosen.setdefault(self._overlap.places[parameter][0], []).append(parameter)
        return [{**self._overlap.options[number], "params": members} for number, members in chosen.items()]

    @contextmanager
    def _only(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """The optimizer has these groups meanwhile."""
        whole = self.param_groups
        self.param_groups = groups
        try:
            yield
        finally:
            self.param_groups = whole
