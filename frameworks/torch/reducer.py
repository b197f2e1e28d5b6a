"""The gradients of a DistributedOptimizer: names, priorities, hooks, what is in flight."""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from byteps import _native
from byteps.reduce_op import Adasum, ReduceOp
from byteps.session import CURRENT, Session, current_session
from byteps.torch.compiling import not_compiled
from byteps.torch.compression import Compressor, NoneCompressor, is_built_in
from byteps.torch.forward_order import ForwardOrder
from byteps.torch.gradient_buffers import GradientBuffers
from byteps.torch.gradient_groups import GradientGroups
from byteps.torch.gradient_layouts import GradientLayouts, empty_sparse
from byteps.torch.gradient_owner import holds_gradient_alone, others_have
from byteps.torch.handle import wait_all
from byteps.torch.in_place import InPlace, PreparedPushPull, finish_together, own_memory
from byteps.torch.lazy_parameters import is_lazy, uninitialized
from byteps.torch.ops import declare, push_pull_async_into
from byteps.torch.process_set import ProcessSet, global_process_set
from byteps.torch.sparse import SparseHandle, check_sparse_op, give_up_sparse_allreduce, start_sparse_allreduce
from byteps.torch.submission import give_up_push_pull, operation_name
from byteps.torch.wire_buffer import elements_share_memory

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# What the other ranks read.
GIVEN_UP = "the training step ended half-way there"


def _is_whole(gradient: torch.Tensor) -> bool:
    """Whether no other tensor is a part of its memory."""
    dense = gradient.layout is torch.strided
    return dense and gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()


class SharedMemory:
    """Memory that gradients on their way are parts of, such as a trainer's flat buffer, or what the backward pass of
    torch.cat gives. Mostly PyTorch counts the versions of all parts together."""

    def __init__(self, nbytes: int) -> None:
        self._gradients: list[torch.Tensor] = []
        self._missing = nbytes
        self._version = 0
        self._touched: bool | None = None  # not asked yet

    def add(self, gradient: torch.Tensor) -> None:
        """A gradient that is sent from now on. What the backward pass has written to other parts before does not
        count as a change of those that were sent earlier."""
        self._gradients.append(gradient)
        self._missing -= gradient.numel() * gradient.element_size()
        self._version = gradient._version

    @property
    def touched(self) -> bool:
        """Whether the parts had been seen to change, since the last of them was sent, until this was asked first."""
        if self._touched is None:
            # Where some part is not on its way, the backward pass may have written to that. Versions that differ are
            # not counted together.
            versions = {gradient._version for gradient in self._gradients}
            self._touched = self._missing == 0 and len(versions) == 1 and self._version not in versions
        return self._touched


class InFlight:
    """A gradient on its way: the operation, and how its result becomes the gradient."""

    __slots__ = (
        "_address",
        "_buffers",
        "_factor",
        "_finished",
        "_memory",
        "_touched",
        "_version",
        "context",
        "gradient",
        "handle",
        "parameter",
        "priority",
        "received",
        "sent",
    )

    def __init__(
        self,
        handle: Any,
        priority: int,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        sent: torch.Tensor,
        received: torch.Tensor,
        context: Any,
        factor: float,
        version: int | None,
        memory: SharedMemory | None = None,
        buffers: Sequence[torch.Tensor] = (),
    ) -> None:
        """`factor`: what the result is multiplied by. `version`: of the gradient; None: its changes cannot be seen so,
        or it is a part of `memory`, whose parts count theirs together. `buffers`: of the parameter's gradients."""
        self.handle = handle
        self.priority = priority
        self.parameter = parameter
        self.gradient = gradient
        self.sent = sent
        self.received = received
        self.context = context
        self._factor = factor
        self._finished = False
        self._touched: bool | None = None  # not asked yet
        self._memory = memory
        self._buffers = buffers
        self._version = version
        self._address = gradient.data_ptr() if gradient.layout is torch.strided else None

    @property
    def touched(self) -> bool:
        """Whether the gradient had been seen to change until this was asked first, which is to be before the handle is
        synchronized."""
        if self._touched is None:
            changed = self._version is not None and self.gradient._version != self._version
            if self._memory is not None:
                changed = self._memory.touched
            if self._address is not None and self.gradient.data_ptr() != self._address:
                changed = True  # by `p.grad.data = ...`
            self._touched = changed or self.parameter.grad is not self.gradient
        return self._touched

    def finish(self, compression: type[Compressor]) -> None:
        """Call after the handle was synchronized; again it does nothing."""
        if self._finished:
            return
        gradient = self.gradient if self.received is self.sent else self._replaced()
        if not (self.sent is self.gradient and is_built_in(compression)):
            result = compression.decompress(self.received, self.context)
            if result is not gradient:
                gradient.detach().copy_(result)
        if self._factor != 1.0 and self.parameter.grad is not None:
            self.parameter.grad.detach().mul_(self._factor)
        self._finished = True

    def _replaced(self) -> torch.Tensor:
        """The gradient where the result came elsewhere: that memory, or, if somebody has kept the gradient since it was
        sent, the gradient itself, which gets a copy."""
        parameter, received = self.parameter, self.received
        if parameter.grad is not self.gradient:
            parameter.grad = received
            return received
        # Only the parameter is to have it, and its pair of buffers.
        self.handle = None
        self.gradient = self.sent = received
        if holds_gradient_alone(parameter, self._buffers):
            parameter.grad = received
            return received
        parameter.grad.detach().copy_(received)
        self.gradient = self.sent = parameter.grad
        return parameter.grad


class SparseInFlight(InFlight):
    """A sparse gradient on its way."""

    __slots__ = ()

    handle: SparseHandle

    def finish(self, compression: type[Compressor]) -> None:
        """Call after the handle was synchronized; again it does nothing."""
        del compression
        if self._finished:
            return
        result = self.handle.synchronize()
        self.parameter.grad = result if self._factor == 1.0 else result * self._factor
        self._finished = True


def _gradient_ready(reducer: weakref.ref[Reducer], parameter: weakref.ref[torch.Tensor], given: Any) -> None:
    """`given`: the parameter, or what a hook of the user's has returned."""
    alive, its = reducer(), parameter()
    if alive is not None and its is not None:
        alive.gradient_ready(its)


class Reducer:
    """The part of a DistributedOptimizer that knows the gradients: names, priorities, hooks, what is in flight."""

    def __init__(
        self,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: ReduceOp,
        gradient_buffers: bool,
        predivide_factor: float = 1.0,
        groups: Iterable[Sequence[torch.Tensor]] = (),
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
        only_sparse: bool = False,
    ) -> None:
        """`predivide_factor`: gradients are divided by it before they are sent, sums multiplied by it. `groups`: of
        parameters whose gradients are sent together. `sparse_as_dense`: sparse gradients are made dense. `process_set`:
        the ranks that take part. `only_sparse`: the optimizer takes no dense gradients."""
        self.compression = compression
        self.op = op
        self.backward_passes_per_step = backward_passes_per_step
        self.buffers = GradientBuffers(gradient_buffers)
        self._predivide_factor = predivide_factor
        # Are gradients sent as they are, and to all ranks?
        self._sends_all = process_set is global_process_set and compression is NoneCompressor and predivide_factor == 1
        self._groups = GradientGroups(groups)
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._layouts = GradientLayouts(process_set, enabled=not sparse_as_dense, only_sparse=only_sparse)
        self._layouts_known = False
        self._waiting: set[torch.Tensor] = set()  # sparse gradients, until it is known what the other ranks have
        self._given_up: set[torch.Tensor] = set()  # of the step that is being given up
        self._session: Callable[[], Session | None] = lambda: None  # of the step
        self.names: dict[torch.Tensor, str] = {}
        self.priorities: dict[torch.Tensor, int] = {}
        self.in_flight: dict[torch.Tensor, InFlight | InPlace] = {}  # until step() or synchronize()
        self.pending: dict[torch.Tensor, InFlight | InPlace] = {}  # behind step(): still to be updated
        self._memories: dict[int, SharedMemory] = {}  # by the address of the storage; of those in flight
        self._passes_left: dict[torch.Tensor, int] = {}
        self._prepared: dict[torch.Tensor, PreparedPushPull] = {}
        # Gradients that are parts of somebody's memory, as they were when they were last sent.
        self._parts: dict[torch.Tensor, weakref.ref[torch.Tensor]] = {}
        self._hooks: dict[torch.Tensor, Any] = {}  # their handles
        self._forward_order: ForwardOrder | None = None  # while it is being learned
        self._learned = False

    def learn_order(self) -> None:
        """Watches the passes of an iteration: what the forward pass uses first is the most urgent afterwards."""
        self._forward_order = ForwardOrder(self.names)

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Takes care of a parameter from now on. Until the order of the forward pass is known, the first added is the
        most urgent: mostly the forward pass needs it first, and the backward pass gives it last. What is added later
        waits behind the others for an iteration, which shows its place. Raises ValueError for one without a shape."""
        if is_lazy(parameter):
            raise ValueError(uninitialized(name.removeprefix("Gradient.")))
        # A rank that divides by something else waits for these, and is named: their sums are no one's.
        factor = self._predivide_factor
        self.names[parameter] = name if factor == 1.0 else f"{name} (predivided by {factor:g})"
        self._layouts_known = False
        self.priorities[parameter] = -len(self.priorities)
        if self._forward_order is not None:
            self._forward_order.add(parameter)
        elif self._learned:
            self.learn_order()
        if parameter.requires_grad:
            self._watch(parameter)

    def _watch(self, parameter: torch.Tensor) -> None:
        """Sees the gradients of a parameter from now on."""
        self._layouts_known = False
        self._passes_left[parameter] = self.backward_passes_per_step
        if self._process_set is global_process_set and is_built_in(self.compression):
            sent, _ = self.compression.compress(torch.empty(0, dtype=parameter.dtype, device="cpu"))
            declare(self.names[parameter], torch.empty(parameter.shape, dtype=sent.dtype, device="meta"))
        self._hook(parameter)

    def _hook(self, parameter: torch.Tensor) -> None:
        """Has gradient_ready called for it."""

        # The hook must not keep the optimizer alive: a model may outlive it; nor the parameter, which has the hook.
        hook = functools.partial(not_compiled(_gradient_ready), weakref.ref(self), weakref.ref(parameter))
        self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(hook)

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        if self._forward_order is not None:
            self._forward_order.close()
            self._forward_order = None

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient has been accumulated."""
        if self.pending and parameter in self.pending:
            raise RuntimeError(
                f"the backward pass reached {self.names[parameter]}, whose update by the step before is still on its "
                "way: its old value was used, by code that goes around both its module's call and Python (TorchScript, "
                "an extension), or before step(). Call optimizer.finish_step() before that, or leave out "
                "overlap_forward."
            )
        if self._count_pass(parameter):
            if self._forward_order is not None:
                self._forward_order.gradient_ready(parameter)
            try:
                self._note_session()
                if self._groups:
                    for ready in self._groups.ready(parameter):
                        if ready.requires_grad:
                            self._start(ready)
                elif parameter.requires_grad:
                    self._start(parameter)
            except Exception:
                if not self.in_flight:  # no session, say: the next backward pass may begin anew
                    self._groups.reset()
                    self._waiting.clear()
                    self.reset()
                raise
            if not self._layouts_known:
                self._ask_layouts()
        elif CURRENT.is_open():
            self._note_session()

    def _note_session(self) -> None:
        """Until the first gradient of a step is sent."""
        if not self.in_flight:
            self._session = weakref.ref(current_session())

    def _count_pass(self, parameter: torch.Tensor) -> bool:
        """Whether this pass was the last of those that are accumulated."""
        left = self._passes_left[parameter]
        assert left > 0 and parameter not in self.in_flight, (
            f"the gradient of {self.names[parameter]} was computed more than backward_passes_per_step="
            f"{self.backward_passes_per_step} times before step(). Raise it to accumulate gradients. (zero_grad() "
            "between passes does not count anew; forget_gradients() does, on all ranks, behind a pass that is to be "
            "left out. torch.utils.checkpoint with use_reentrant=True computes a gradient in each checkpoint that uses "
            "the parameter: use_reentrant=False computes their sum.)"
        )
        self._passes_left[parameter] = left - 1
        return left == 1

    def _ask_layouts(self) -> None:
        """If every parameter has a gradient: asks the other ranks what theirs are."""
        if self._layouts.owes_answer:  # the backward pass is not to wait for it
            return
        wanted = [one for one in self.names if one.requires_grad or one.grad is not None]
        if all(one in self.in_flight or one in self._waiting for one in wanted):
            self._layouts.ask(wanted, self.names)

    def _start(self, parameter: torch.Tensor) -> None:
        if not self._start_in_place(parameter):
            self._start_otherwise(parameter)

    def _start_otherwise(self, parameter: torch.Tensor) -> None:
        if not self._prepare(parameter):
            self._waiting.add(parameter)
            return
        if parameter.grad is not None and parameter.grad.layout is torch.sparse_coo:
            self.in_flight[parameter] = self._start_sparse(parameter, parameter.grad)
            return
        output = self.buffers.output(parameter)  # first: it asks who else holds the gradient
        gradient = parameter.grad
        assert gradient is not None
        source = self._source(parameter, gradient)
        sent, context = self.compression.compress(source)
        # What compression has made is memory of its own already.
        received = output if sent is gradient and output is not None else sent
        priority = self.priorities[parameter]
        handle = push_pull_async_into(
            sent,
            received,
            name=self.names[parameter],
            priority=priority,
            op=self.op,
            process_set=self._process_set,
        )
        self.in_flight[parameter] = InFlight(
            handle,
            priority,
            parameter,
            gradient,
            sent,
            received,
            context,
            self._predivide_factor,
            gradient._version if _is_whole(gradient) and not gradient.is_inference() else None,
            self._memory_of(gradient),
            self.buffers.of(parameter) if received is not sent else (),
        )

    def _source(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """What a dense gradient is sent from: itself, or a copy, where its memory must not be written before the
        backward pass is over."""
        factor = 1.0 / self._predivide_factor
        if self._is_held(parameter, gradient):
            return gradient.detach() * factor if factor != 1.0 else gradient.detach().clone()
        if factor != 1.0:
            gradient.detach().mul_(factor)
        return gradient

    def _is_held(self, parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
        """Whether others have the gradient's memory. Not where it was a part of somebody's memory when it was last
        sent, as of a trainer's buffer: the backward pass has added to it, and reads nothing there any more."""
        if is_traceable_wrapper_subclass(gradient) or not others_have(gradient.untyped_storage()):
            return False
        if _is_whole(gradient):
            return True
        last = self._parts.get(parameter)
        if last is not None and last() is gradient:
            return False
        self._parts[parameter] = weakref.ref(gradient)
        return True

    def _start_in_place(self, parameter: torch.Tensor) -> bool:
        """Starts a gradient that needs as little as nearly all (in_place.py). False: it needs more."""
        if not self._sends_all or self.op is Adasum:
            return False
        if self._layouts.has_sparse and self._layouts.is_sparse(parameter):
            return False
        gradient = parameter.grad
        memory = own_memory(gradient)
        if gradient is None or memory is None or self.buffers.may_replace(gradient):
            return False
        prepared = self._prepared.get(parameter)
        if prepared is None:
            prepared = self._prepared[parameter] = PreparedPushPull(self.names[parameter])
        priority = self.priorities[parameter]
        request = prepared.start(gradient, memory, self.op, priority)
        self.in_flight[parameter] = InPlace(request, prepared.name, parameter, gradient, priority)
        return True

    def _memory_of(self, gradient: torch.Tensor) -> SharedMemory | None:
        """The memory that a gradient which is sent now is a part of; None: it has its own."""
        if gradient.numel() == 0 or gradient.is_inference() or _is_whole(gradient):
            return None
        storage = gradient.untyped_storage()
        memory = self._memories.setdefault(storage.data_ptr(), SharedMemory(storage.nbytes()))
        memory.add(gradient)
        return memory

    def _sparse_name(self, parameter: torch.Tensor) -> str:
        """That of its dense gradients, so that a rank that gives its round up need not know how the others send it."""
        name = self.names[parameter]
        return name if self._process_set is global_process_set else operation_name("push_pull", name, self._process_set)

    def _start_sparse(self, parameter: torch.Tensor, gradient: torch.Tensor) -> SparseInFlight:
        priority = self.priorities[parameter]
        handle = start_sparse_allreduce(
            gradient, self.op, self._sparse_name(parameter), self._process_set, priority, self.compression
        )
        return SparseInFlight(
            handle, priority, parameter, gradient, gradient, gradient, None, self._predivide_factor, None
        )

    def _prepare(self, parameter: torch.Tensor) -> bool:
        """Makes of the gradient what is sent. False: it has to wait until the ranks' layouts are known."""
        is_sparse = self._layouts.is_sparse(parameter)
        if parameter.grad is None:
            if is_sparse:
                parameter.grad = empty_sparse(parameter)
            return True
        if parameter.grad.layout is torch.sparse_coo:
            if is_sparse is not False:
                check_sparse_op(self.op)
            if is_sparse is None:
                return False
            if not is_sparse:
                parameter.grad = parameter.grad.to_dense()
        elif is_sparse:
            parameter.grad = parameter.grad.to_sparse(1)
        elif elements_share_memory(parameter.grad):  # as no other rank's does, and as autograd never makes it
            parameter.grad = parameter.grad.clone()
        if is_sparse and self._predivide_factor != 1.0:
            parameter.grad = parameter.grad * (1.0 / self._predivide_factor)
        return True

    def launch(self) -> list[InFlight | InPlace]:
        """The gradients of a step, all of them on their way, the most urgent first. One that the backward pass did not
        reach is sent now: the other ranks may have one, and wait for ours."""
        if not self._is_complete():
            self._complete()
        return sorted(self._take(), key=operator.attrgetter("priority"), reverse=True)

    def _is_complete(self) -> bool:
        """Whether every parameter's gradient is on its way, and nothing is to be found out about it. (False may be
        said of some such.)"""
        count = len(self.names)
        return self._layouts_known and len(self.in_flight) == count and self._layouts.knows(count)

    def _complete(self) -> None:
        """Starts what is missing."""
        try:
            wanted = []
            for parameter in self.names:
                if parameter.requires_grad and parameter not in self._passes_left:
                    self._watch(parameter)  # was frozen until now
                    if self._learned and self._forward_order is None:
                        self.learn_order()
                if parameter.requires_grad or parameter.grad is not None:
                    wanted.append(parameter)
            self._note_session()
            self._layouts.ask(wanted, self.names)
            self._layouts.settle()
            self._layouts_known = True
            for parameter in wanted:
                if parameter not in self.in_flight:
                    self._start(parameter)
            unsent = [self.names[parameter] for parameter in wanted if parameter not in self.in_flight]
            assert not unsent, f"gradients that were not sent: {unsent}"
        except Exception:
            # No operation may still write into a gradient that the user gets back, and none waits for ranks whose
            # model has not that gradient. (Behind a KeyboardInterrupt they are on their way as before.)
            self.abandon()
            raise

    def _take(self) -> list[InFlight | InPlace]:
        """What is in flight, which is the caller's from here on; the next backward pass begins anew."""
        items = list(self.in_flight.values())
        self.in_flight.clear()
        self._memories.clear()
        self._waiting.clear()
        self._given_up.clear()
        self._layouts.end_step()
        self._groups.reset()
        self.reset()
        return items

    def touched(self) -> str | None:
        """The name of a gradient on its way that has been seen to change since. Ask before synchronize()."""
        for item in self.in_flight.values():
            if item.touched:
                return self.names[item.parameter]
        return None

    def synchronize(self) -> None:
        """Waits until every gradient holds the reduction."""
        items = self.launch()
        try:
            # All of them, whatever goes wrong with one.
            together = finish_together(items)
            if not together:
                wait_all(item.handle for item in items)
        except Exception:
            raise
        except BaseException:  # a KeyboardInterrupt: they are still on their way
            self._keep(items)
            raise
        try:
            if not together:
                for item in items:
                    item.finish(self.compression)
        except BaseException:  # likewise: the others are finished when it is called again
            self._keep(items)
            raise
        self.finish_learning()

    def _keep(self, items: Sequence[InFlight | InPlace]) -> None:
        for item in items:
            self.in_flight[item.parameter] = item
            self._passes_left[item.parameter] = 0

    @property
    def has_begun(self) -> bool:
        """Whether a gradient of this step was computed."""
        return bool(self.in_flight) or any(left < self.backward_passes_per_step for left in self._passes_left.values())

    def abandon(self, whole_step: bool = False) -> None:
        """Gives up what is in flight, and waits until nothing is. What this step has not sent yet is given up, too: the
        other ranks hear of it, and this rank's gradients of the next step meet theirs. `whole_step`: also where the
        step has sent nothing."""
        if whole_step and not self.has_begun:
            self._note_session()
        items = self.cancel(whole_step)
        with contextlib.suppress(Exception):
            wait_all([item.handle for item in items])

    def cancel(self, whole_step: bool = False) -> list[InFlight | InPlace]:
        """Gives the step up, and returns what was in flight, the most urgent first: some of it may have come home, what
        has not ends with an error."""
        for item in self.in_flight.values():
            item.handle.cancel()
        rest = self._give_up_unsent(whole_step)
        items = sorted(self._take(), key=operator.attrgetter("priority"), reverse=True)
        _native.wait_all(rest)
        return items

    def _give_up_unsent(self, whole_step: bool) -> list[_native.Request]:
        """Begins to give up what this step has not sent yet."""
        rest: list[_native.Request] = []
        # Else no gradient of the step was to be sent, and the next one takes its place; or it is of an earlier session,
        # whose rounds are over.
        if (self.has_begun or whole_step) and CURRENT.is_open() and current_session() is self._session():
            with contextlib.suppress(Exception):  # the session has failed, say: no rank waits for anything
                self._give_up_rest(rest)
        return rest

    def _give_up_rest(self, requests: list[_native.Request]) -> None:
        """Gives up what this step had still to send; adds the requests of it."""
        wanted = [one for one in self.names if one.requires_grad or one.grad is not None]
        self._layouts.ask(wanted, self.names)  # once for all steps: the others wait for the answer
        for parameter in wanted:
            if parameter in self.in_flight or parameter in self._given_up:
                continue
            kind = parameter.dtype
            if is_built_in(self.compression):
                kind = self.compression.compress(torch.empty(0, dtype=kind, device="cpu"))[0].dtype
            sparse = self._layouts.is_sparse(parameter)
            give_up = give_up_sparse_allreduce if sparse else give_up_push_pull
            name = self._sparse_name(parameter) if sparse else self.names[parameter]
            self._given_up.add(parameter)
            requests.append(give_up(name, kind, tuple(parameter.shape), self.op, self._process_set, GIVEN_UP))

    def finish_learning(self) -> None:
        """At the end of an iteration: if it has shown the order of the forward pass, it counts from now on."""
        if self._forward_order is not None and self._forward_order.seen:
            order, self._forward_order = self._forward_order.close(), None
            self._learned = True
            self.priorities = {parameter: -position for position, parameter in enumerate(order)}

    def reset(self) -> None:
        """Starts counting backward passes anew."""
        self._passes_left = dict.fromkeys(self._passes_left, self.backward_passes_per_step)
