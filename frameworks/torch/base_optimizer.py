"""What a DistributedOptimizer adds to the class of the optimizer that it was made from."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

from byteps.arguments import check_passes
from byteps.reduce_op import ReduceOp
from byteps.torch.lazy_parameters import is_lazy, uninitialized
from byteps.torch.process_set import ProcessSet
from byteps.torch.reducer import Reducer

import torch

# What a DistributedOptimizer has in common with the optimizer that it was made from.
_SHARED = ("param_groups", "state")


def _take(mine: Any, loaded: Any) -> None:
    """Gives options or state, which others have too, what was loaded."""
    pairs = zip(mine, loaded) if isinstance(mine, list) else [(mine, loaded)]
    for kept, new in pairs:
        if kept is not new:
            kept.clear()
            kept.update(new)


class BaseOptimizer(torch.optim.Optimizer):
    """What a DistributedOptimizer adds to the optimizer's own class, whose methods come after these.

    Attributes:
        backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense, process_set: the arguments of
            DistributedOptimizer(), to be read. An attribute of this name that the optimizer has itself stays.
    """

    # Methods that torch.compile is not to look into.
    UNCOMPILED: ClassVar[tuple[str, ...]] = ("synchronize",)

    backward_passes_per_step: int
    op: ReduceOp
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _reducer: Reducer
    _is_distributed: bool
    _synchronized: bool
    _should_synchronize: bool
    _names: dict[torch.Tensor, str]
    _unnamed: str  # what the names of parameters without one begin with

    def synchronize(self) -> None:
        """Waits until the gradients hold the reduction over all workers. step() does it; call it before to read or clip
        the gradients, then step() inside skip_synchronize().

        Raises:
            BytePSError: see byteps.torch.synchronize(). No operation is in flight then; the gradients are unspecified.
            KeyboardInterrupt: gradients are on their way still. Calling it again waits for them, forget_gradients()
                gives them up.
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
        check_passes(passes)
        self.backward_passes_per_step = passes
        self._reducer.backward_passes_per_step = passes
        self._reducer.reset()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients, then takes the optimizer's own step. With a closure, the gradients of each of its
        evaluations are waited for.

        Raises:
            BytePSError: see synchronize().
            RuntimeError: a gradient was changed, or a GradScaler used, since backward() without synchronize(). No
                operation is in flight then; the gradients are unspecified. The step of other ranks raises AbortedError,
                unless they had the sums before.
        """
        if not self._should_synchronize:
            self._synchronized = False
            return self.own_step(closure)

        self._warn_if_synchronized()
        touched = self._reducer.touched()
        if touched is not None:
            self._refuse(f"the gradient {touched} was changed")
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

    # To PyTorch: this calls the step hooks already (the optimizer's own step does). Else load_state_dict() would put a
    # second call of them around it.
    step.hooked = True  # type: ignore[attr-defined]

    def _warn_if_synchronized(self) -> None:
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "The gradients are reduced a second time, which takes time and, with op=Sum, changes them.",
                stacklevel=3,
            )

    def _refuse(self, what: str) -> NoReturn:
        # The sums of this rank may be spoiled. Ranks that have not got theirs yet do not take the step either.
        self._reducer.abandon()
        self._synchronized = False
        raise RuntimeError(
            f"{what} between backward() and step(), while they were being reduced. To clip gradients, and with a "
            "GradScaler: optimizer.synchronize() first, then step(), or scaler.step(optimizer), within "
            "optimizer.skip_synchronize(). Other ranks that had the sums may have taken the step: "
            "broadcast_parameters() makes the ranks equal again"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch.amp.GradScaler.step() asks this first. What it does to the gradients changes no version."""
        if self._reducer.in_flight:
            self._refuse("a GradScaler has come to the gradients")
        own = self.__dict__.get("_step_supports_amp_scaling")
        return bool(getattr(super(), "_step_supports_amp_scaling", False) if own is None else own)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def own_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step, of the gradients as they are on this rank."""
        return super().step() if closure is None else super().step(closure)

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The names that the user has given; Horovod's users read them."""
        return dict(self._names)

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """The operations in flight, by parameter; Horovod's users count them."""
        return {parameter: (item.handle, item.context) for parameter, item in self._reducer.in_flight.items()}

    def forget_gradients(self, whole_step: bool = False) -> None:
        """Gives the step up, after an error between backward() and step(), here and at the other ranks, whose step
        raises AbortedError; the next backward pass begins anew.

        When all gradients had been sent, the other ranks may have the sums, and take the step: where they do,
        broadcast_parameters() makes the ranks equal again.

        Args:
            whole_step: also a step whose backward pass has computed no gradient, after an error of the forward pass,
                say. Otherwise there is nothing to give up then: the next pass takes the place of this one, so that this
                rank is a batch behind the others.

        Raises:
            ValueError: whole_step, before init() or after shutdown().
        """
        self._reducer.abandon(whole_step)
        self._synchronized = False

    def finish_step(self) -> None:
        """Waits until step() has updated all parameters: with overlap_forward, it returns before that. Never needed to
        see a parameter updated; for what goes around PyTorch's functions (see overlap_forward), to have errors raised
        here, or to take the time."""

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, which gets the arguments as they are: a class of the user's may take none, or have
        another default.

        Raises:
            AssertionError: gradients are on their way.
        """
        self._check_none_in_flight()
        return super().zero_grad(*args, **kwargs)

    def _sets_to_none(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool | None:
        """Whether the optimizer's own zero_grad(), called so, makes gradients None; None: its arguments do not say."""
        bound = inspect.signature(super().zero_grad).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments.get("set_to_none", kwargs.get("set_to_none"))  # it may take **kwargs
        return None if given is None else bool(given)

    def _check_none_in_flight(self) -> None:
        assert not self._reducer.in_flight, (
            "optimizer.zero_grad() was called after loss.backward() and before optimizer.step() or "
            "optimizer.synchronize(): the gradients are being reduced, and must not change meanwhile. To add up the "
            "gradients of several passes, set backward_passes_per_step, and call zero_grad() once before them. After "
            "an error in the backward pass call optimizer.forget_gradients() first"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the new parameters are reduced too, named by their number. Raises ValueError for one
        that a lazy module has not made yet."""
        super().add_param_group(param_group)
        if not self._is_distributed:
            return
        group = len(self.param_groups) - 1
        named = {f"{self._unnamed}.group.{group}.{i}": one for i, one in enumerate(self.param_groups[-1]["params"])}
        for name, parameter in named.items():
            if is_lazy(parameter):
                del self.param_groups[-1]
                raise ValueError(uninitialized(name.removeprefix("Gradient.")))
        for name, parameter in named.items():
            self._reducer.add(parameter, name)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a DistributedOptimizer cannot be pickled or copied: its gradients, hooks and names belong to this "
            "process. Save optimizer.state_dict(), and load it into another one, made by DistributedOptimizer()"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own; gradients on their way are waited for, and counting starts anew."""
        if self._reducer.in_flight:
            self.synchronize()
        self._reducer.reset()
        self._synchronized = False
        own = vars(self)
        before = {name: own.get(name) for name in _SHARED}
        self._loaded = {}
        super().load_state_dict(state_dict)
        # The optimizer that this one was made from has the same options and state; a learning-rate scheduler made for
        # it changes them. Where PyTorch has replaced them here, both have the new ones. What a class of the user's has
        # replaced is its own affair: it may share it with an optimizer inside of it.
        for name, loaded in self._loaded.items():
            if loaded is own.get(name) and loaded is not before[name] and before[name] is not None:
                _take(before[name], loaded)
                own[name] = before[name]
        self._loaded = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch.optim.Optimizer.load_state_dict() ends with this call.
        self._loaded = {name: vars(self)[name] for name in _SHARED if name in state and name in vars(self)}
