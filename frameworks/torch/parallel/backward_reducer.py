"""The gradients of a DistributedDataParallel: sent during the backward pass, awaited at its end."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from byteps import _native
from byteps.reduce_op import Average, Sum
from byteps.torch.compiling import not_compiled
from byteps.torch.compression import Compressor
from byteps.torch.in_place import InPlace
from byteps.torch.ops import push_pull_async_into
from byteps.torch.process_set import ProcessSet
from byteps.torch.reducer import GIVEN_UP, InFlight, Reducer
from byteps.torch.submission import give_up_push_pull

import torch
from torch.utils._pytree import tree_flatten


def _backward_begins(reducer: weakref.ref[BackwardReducer], gradient: torch.Tensor) -> None:
    """A hook of an output."""
    alive = reducer()
    if alive is not None:
        alive.begins_at_outputs()


class BackwardReducer(Reducer):
    """A reducer whose result is there when backward() returns."""

    def __init__(
        self,
        compression: type[Compressor],
        gradient_buffers: bool,
        name: str,
        find_unused: bool,
        process_set: ProcessSet,
    ) -> None:
        """`find_unused`: parameters that no rank has used keep the gradient they had, or None."""
        super().__init__(compression, 1, Average, gradient_buffers, process_set=process_set)
        self._averages = True  # the backward pass that runs, or comes
        self._expected = True  # the one that belongs to the last forward pass
        self._used = f"{name}.used"  # what the ranks say of it
        self._find_unused = find_unused
        self._accumulated: set[torch.Tensor] = set()  # parameters used inside no_sync(), not averaged yet
        self._begun = False
        self._used_is_sent = False  # which parameters this pass has used
        self._end_is_known = False  # ended() is queued for the end of the backward pass that is running
        self._give_up = not_compiled(Reducer.abandon)

    def expect(self, averages: bool) -> None:
        """A forward pass begins, whose backward pass averages, or accumulates only."""
        self._averages = self._expected = averages

    def watch_outputs(self, outputs: Any) -> None:
        """Learns from the module's outputs where a backward pass begins that averages, whatever forward passes there
        were since: it ends where this one ends. A checkpoint with use_reentrant=True runs backward passes of its own
        inside it, which end earlier."""
        # The graph of the outputs must not keep the reducer alive.
        hook = functools.partial(not_compiled(_backward_begins), weakref.ref(self))
        for output in tree_flatten(outputs)[0]:  # tree_leaves() came with PyTorch 2.2
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                output.register_hook(hook)

    def begins_at_outputs(self) -> None:
        """A backward pass that averages has come to the module's outputs."""
        self._end_is_known = self._averages = True
        self._queue_end()

    def _queue_end(self) -> None:
        end = functools.partial(not_compiled(BackwardReducer.ended), self)
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def abandon(self) -> None:
        """Gives up what a backward pass has left that ended with an error. A forward pass calls it, which may be
        compiled, and whole where nothing is left."""
        self._end_is_known = False
        self._averages = self._expected
        if self._begun:
            self._give_up(self)
            self._begun = False

    def _is_last(self, parameter: torch.Tensor) -> bool:
        """Whether no hook of the user's comes behind ours in this pass. From the next one on none does: ours is moved
        behind them. (A hook of the parameter's node in the graph, as torch's class has it, comes behind all, too, but
        for it autograd keeps another reference to the gradient, which then could not be sent from where it is.)"""
        ours = self._hooks.get(parameter)
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)  # in their order, by the numbers of the handles
        if ours is None or not hooks or next(reversed(hooks)) == ours.id:
            return True
        ours.remove()
        self._hook(parameter)
        return False

    def _give_up_rest(self, requests: list[_native.Request]) -> None:
        if self._find_unused and not self._used_is_sent:
            used = (len(self.names),)
            self._used_is_sent = True
            requests.append(give_up_push_pull(self._used, torch.int32, used, Sum, self._process_set, GIVEN_UP))
        super()._give_up_rest(requests)

    def _take(self) -> list[InFlight | InPlace]:
        self._used_is_sent = False
        return super()._take()

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient has been accumulated."""
        is_last = self._is_last(parameter)
        if not self._averages:
            if self._find_unused:
                self._accumulated.add(parameter)
            return
        if not self._begun:
            self._begun = True
            self._note_session()
            if not self._end_is_known:
                self._queue_end()
        if is_last:
            super().gradient_ready(parameter)
        elif self._count_pass(parameter) and self._forward_order is not None:  # finish() sends it
            self._forward_order.gradient_ready(parameter)

    def ended(self) -> None:
        """Called by autograd at the end of a pass; one of autograd.grad() has reached no parameter."""
        self._end_is_known = False
        self._averages = self._expected
        if self._begun:
            self.finish()

    def finish(self) -> None:
        """The end of the backward pass: parameters hold the averages when it returns."""
        unused: dict[torch.Tensor, torch.Tensor | None] = {}
        touched = self.touched()
        try:
            if self._find_unused:
                unused = self._unused()
            self.synchronize()
            self._accumulated.clear()
        except Exception:
            self._begun = False
            raise
        finally:
            for parameter, gradient in unused.items():
                parameter.grad = gradient
        self._begun = False  # not behind a KeyboardInterrupt: the next forward pass gives up what is on its way
        if touched is not None:
            raise RuntimeError(
                f"the gradient {touched} was changed during the backward pass, while it was being reduced, so the "
                "averages are unspecified. A hook of a parameter may change the gradient of this parameter, and of no "
                "other; what changes several does so behind backward()"
            )

    def _unused(self) -> dict[torch.Tensor, torch.Tensor | None]:
        """The parameters that no rank has used in this pass or inside no_sync() before it, with their gradients."""
        parameters = list(self.names)
        used = torch.tensor(
            [self._passes_left.get(p) == 0 or p in self._accumulated for p in parameters],
            dtype=torch.int32,
            device="cpu",
        )
        handle = None
        try:
            handle = push_pull_async_into(used, used, self._used, 1 << 62, Sum, self._process_set)
            self._used_is_sent = True
            handle.synchronize()
        except Exception:
            # No operation may still write into a gradient that the user gets back.
            super().abandon()
            raise
        except BaseException:
            if handle is not None:
                handle.cancel()
            raise
        found = [parameter for parameter, count in zip(parameters, used.tolist()) if count == 0]
        kept: dict[torch.Tensor, torch.Tensor | None] = {}
        for parameter in found:
            kept[parameter] = parameter.grad
            parameter.grad = None  # zeros are sent in its place
        return kept
