"""The gradients of a DistributedDataParallel: sent during the backward pass, awaited at its end."""

from __future__ import annotations

import weakref
from typing import Any

from byteps.reduce_op import Average, Sum
from byteps.torch.compression import Compressor
from byteps.torch.handle import wait_all
from byteps.torch.ops import push_pull_async_into
from byteps.torch.process_set import ProcessSet
from byteps.torch.reducer import Reducer

import torch
from torch.utils._pytree import tree_flatten


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
        self._name = name
        self._find_unused = find_unused
        self._accumulated: set[torch.Tensor] = set()  # parameters used inside no_sync(), not averaged yet
        self._begun = False
        self._end_is_known = False  # ended() is queued for the end of the backward pass that is running

    def expect(self, averages: bool) -> None:
        """A forward pass begins, whose backward pass averages, or accumulates only."""
        self._averages = self._expected = averages

    def watch_outputs(self, outputs: Any) -> None:
        """Learns from the module's outputs where a backward pass begins that averages, whatever forward passes there
        were since: it ends where this one ends. A checkpoint with use_reentrant=True runs backward passes of its own
        inside it, which end earlier."""
        # The graph of the outputs must not keep the reducer alive.
        reducer = weakref.ref(self)

        def hook(gradient: torch.Tensor) -> None:
            alive = reducer()
            if alive is not None:
                alive._end_is_known = alive._averages = True
                torch.autograd.Variable._execution_engine.queue_callback(alive.ended)

        for output in tree_flatten(outputs)[0]:  # tree_leaves() came with PyTorch 2.2
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                output.register_hook(hook)

    def abandon(self) -> None:
        """Gives up what a backward pass has left that ended with an error."""
        self._end_is_known = False
        self._averages = self._expected
        if self._begun:
            self._begun = False
            super().abandon()

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient has been accumulated."""
        if not self._averages:
            if self._find_unused:
                self._accumulated.add(parameter)
            return
        if not self._begun:
            self._begun = True
            if not self._end_is_known:
                torch.autograd.Variable._execution_engine.queue_callback(self.ended)
        super().gradient_ready(parameter)

    def ended(self) -> None:
        """Called by autograd at the end of a pass; one of autograd.grad() has reached no parameter."""
        self._end_is_known = False
        self._averages = self._expected
        if self._begun:
            self.finish()

    def finish(self) -> None:
        """The end of the backward pass: parameters hold the averages when it returns."""
        unused: dict[torch.Tensor, torch.Tensor | None] = {}
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

    def _unused(self) -> dict[torch.Tensor, torch.Tensor | None]:
        """The parameters that no rank has used in this pass or inside no_sync() before it, with their gradients."""
        parameters = list(self.names)
        used = torch.tensor(
            [p in self.in_flight or p in self._waiting or p in self._accumulated for p in parameters],
            dtype=torch.int32,
            device="cpu",
        )
        handle = None
        try:
            name, most = f"{self._name}.used", 1 << 62
            handle = push_pull_async_into(used, used, name, most, Sum, self._process_set)
            handle.synchronize()
        except Exception:
            # No operation may still write into a gradient that the user gets back.
            wait_all(item.handle for item in self._take())
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
