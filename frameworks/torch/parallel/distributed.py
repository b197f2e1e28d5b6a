"""DistributedDataParallel: a module whose gradients are averaged over all workers when backward() returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from byteps.asynchronous import refuse_asynchronous
from byteps.errors import FailedPreconditionError
from byteps.session import current_session
from byteps.torch.broadcast import broadcast_async_
from byteps.torch.compiling import is_compiling, not_compiled
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.distributed_class import is_distributed
from byteps.torch.functions import broadcast_parameters, check_sendable
from byteps.torch.handle import wait_all
from byteps.torch.lazy_parameters import is_lazy, uninitialized
from byteps.torch.model_outline import ModelOutline, agree
from byteps.torch.parallel.backward_reducer import BackwardReducer
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set

import torch


class DistributedDataParallel(torch.nn.Module):
    """Wraps a module: its gradients are averaged over all workers during the backward pass, and with them the
    workers' models stay equal. With it an ordinary optimizer is used::

        model = byteps.torch.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    The arguments are those of torch.nn.parallel.DistributedDataParallel and of BytePS. backward() returns when
    all averages are there; the reduction of each gradient begins as soon as it is computed. What the backward pass did
    not reach contributes zeros, so ranks whose graphs differ do not wait for each other.

    torch.utils.checkpoint works in the module, also with use_reentrant=True if each parameter is used in one checkpoint
    alone: in two it gets two gradients, the second of them when the first is on its way already, which is an
    AssertionError. (With use_reentrant=True in a module whose outputs are hidden in objects that torch.utils._pytree
    does not know, gradients may travel more than once.)

    Args:
        module: the module. Its parameters and buffers are overwritten with those of the first rank here, unless
            init_sync is False. The same parameters on all ranks; those that do not require gradients now are not
            averaged. Names in its `_ddp_params_and_buffers_to_ignore` are left alone, as torch's class does.
        device_ids: None, or a list of the one device that the module is on.
        output_device, dim: for compatibility: None or that device, and 0. (BytePS's third positional argument is
            broadcast_buffers, its fourth compression; they are told apart by their types.)
        broadcast_buffers: the first rank's buffers overwrite those of the others before the first forward pass, and
            before each one behind one that averages, also in evaluation: all ranks must call it. False: they do not,
            and each rank begins with its own buffers.
        init_sync: whether to begin with the values of the first rank.
        process_group: the ranks that take part: a process set, or a group of torch.distributed's backend "byteps".
            None: all.
        bucket_cap_mb, gradient_as_bucket_view, static_graph, check_reduction: accepted, and without effect: there are
            no buckets, each gradient travels by itself, and p.grad is where its average is.
        find_unused_parameters: parameters that no rank has used in a step, no_sync() included, keep the gradient they
            had (or None), at the cost of one small reduction. False: they get zeros.
        compression: Compression.none, Compression.fp16 or Compression.bf16.
        gradient_buffers: as DistributedOptimizer's.
        forward_sync_buffers: counts in place of broadcast_buffers; False: all begin with the first rank's buffers, and
            have their own from then on.

    Raises:
        ValueError: before init(), more than one device, or a process group that this rank is not in.
        RuntimeError: as in PyTorch, no parameter that requires a gradient, or one that a lazy module has not made yet.
        FailedPreconditionError: on all ranks, before anything is sent: the modules have other parameters or buffers
            (their names, shapes, data types, requires_grad), the arguments differ, or another rank cannot take part.
        TypeError: `module` is no module, or `process_group` is something else.
        NotImplementedError: an argument of torch's that has no meaning here.
        UnimplementedError: the job trains asynchronously.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[Any] | None = None,
        output_device: Any = None,
        dim: Any = 0,
        broadcast_buffers: bool | None = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        compression: type[Compressor] = Compression.none,
        gradient_buffers: bool = True,
        forward_sync_buffers: bool | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        if isinstance(output_device, bool):  # BytePS's third
            output_device, broadcast_buffers = None, output_device
        if not isinstance(dim, int):  # BytePS's fourth
            dim, compression = 0, dim
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module is a {type(module).__name__}; it must be a torch.nn.Module")
        _refuse(others, device_ids, output_device, dim)
        refuse_asynchronous("byteps.torch.parallel.DistributedDataParallel")
        ranks = _process_set(process_group)
        check_compression(compression)
        del bucket_cap_mb, check_reduction, gradient_as_bucket_view, static_graph
        # torch's FSDP and _set_params_and_buffers_to_ignore_for_model() leave names here that are each rank's own.
        self._ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        all_parameters = [pair for pair in module.named_parameters() if pair[0] not in self._ignored]
        parameters = [(name, parameter) for name, parameter in all_parameters if parameter.requires_grad]

        self.module = module
        self._device = torch.device(device_ids[0]) if device_ids else None
        # As in PyTorch: the older argument counts for the beginning, too.
        begins_with_buffers = forward_sync_buffers is not None or broadcast_buffers is None or bool(broadcast_buffers)
        self.forward_sync_buffers = begins_with_buffers if forward_sync_buffers is None else bool(forward_sync_buffers)
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        number = current_session().object_number("DistributedDataParallel", ranks.key())
        self._name = f"DistributedDataParallel.{number}"
        self._reducer: BackwardReducer | None = None
        self._send_buffers = not_compiled(DistributedDataParallel._broadcast)
        self._process_set = ranks
        self._root = (ranks.ranks or [0])[0]
        # Not its state_dict(), which may leave out some and have more than tensors.
        begun = [*all_parameters, *(self._buffers_to_share() if begins_with_buffers else ())] if init_sync else []
        shares_buffers = self.forward_sync_buffers or (init_sync and begins_with_buffers)
        self._agree(
            [*all_parameters, *(self._buffers_to_share() if shares_buffers else ())],
            begun,
            {
                "init_sync": init_sync,
                "broadcast_buffers": begins_with_buffers,
                "forward_sync_buffers": self.forward_sync_buffers,
                "find_unused_parameters": bool(find_unused_parameters),
                "compression": compression.__name__,
            },
        )
        if init_sync:
            broadcast_parameters(begun, self._root, f"{self._name}.state.", ranks)
        if is_distributed(ranks):
            self._reducer = BackwardReducer(compression, gradient_buffers, self._name, find_unused_parameters, ranks)
            for name, parameter in parameters:
                self._reducer.add(parameter, f"{self._name}.{name}")
            self._reducer.learn_order()

    def _agree(
        self,
        tensors: list[tuple[str, torch.Tensor]],
        begun: list[tuple[str, torch.Tensor]],
        options: dict[str, object],
    ) -> None:
        """Whether all ranks have these tensors, and may begin with those in `begun`. Raises what __init__() does."""
        # What is wrong on one rank is an error of all: the others must not wait for it.
        refused: Exception | None = None
        try:
            _check_trainable(tensors)
            check_sendable(begun)
        except Exception as error:  # raised below
            refused = error
        if is_distributed(self._process_set):
            outline = ModelOutline.of(tensors, options, "" if refused is None else f"{refused!r}")
            try:
                agree(outline, f"{self._name}.outline", self._process_set)
            except FailedPreconditionError:
                if refused is None:
                    raise
        if refused is not None:
            raise refused

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's own forward, with the first rank's buffers."""
        averages = torch.is_grad_enabled() and self.require_backward_grad_sync
        buffers: list[tuple[str, torch.Tensor]] = []
        if self._reducer is not None and self.forward_sync_buffers and self.require_forward_param_sync:
            buffers = self._buffers_to_share()
        if self._reducer is not None and (averages or buffers):  # what the other ranks take part in
            self._reducer.abandon()
        if buffers:  # without any, torch.compile makes a whole graph of this
            self._send_buffers(self, buffers)
        # As in PyTorch: the pass behind one without averages has nothing to get from the first rank either.
        self.require_forward_param_sync = averages
        if self._reducer is not None and torch.is_grad_enabled():
            self._reducer.expect(averages)
        if self._device is not None:
            inputs, kwargs = _to_device(inputs, self._device), _to_device(kwargs, self._device)
        outputs = self.module(*inputs, **kwargs)
        if self._reducer is not None and averages and not is_compiling():
            self._reducer.watch_outputs(outputs)
        return outputs

    @property
    def broadcast_buffers(self) -> bool:
        """The older name of `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    def _broadcast(self, buffers: list[tuple[str, torch.Tensor]]) -> None:
        # In the names' order on no rank: what is missing on one is an error that names it.
        wait_all(
            [
                broadcast_async_(buffer, self._root, f"{self._name}.buffer.{name}", self._process_set, 1 << 62)
                for name, buffer in buffers
            ]
        )

    def _buffers_to_share(self) -> list[tuple[str, torch.Tensor]]:
        return [pair for pair in self.module.named_buffers() if pair[0] not in self._ignored]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes whose forward pass was in here accumulate gradients, and average nothing; the next one
        outside averages the sums."""
        earlier = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = earlier

    def synchronize(self) -> None:
        """Waits until the gradients hold the averages. Never needed: backward() has waited already."""
        if self._reducer is not None and self._reducer.in_flight:
            self._reducer.finish()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedDataParallel cannot be pickled or copied; do so with its .module")

    def __del__(self) -> None:
        reducer = self.__dict__.get("_reducer")
        if reducer is not None:
            reducer.close()


def _check_trainable(tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Raises RuntimeError, as torch's class does."""
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise RuntimeError(f"DistributedDataParallel cannot take the module yet: {uninitialized(name)}")
    if not any(tensor.requires_grad for _, tensor in tensors):
        raise RuntimeError(
            "DistributedDataParallel is not needed: the module has no parameter that requires a gradient"
        )


def _to_device(value: Any, device: torch.device) -> Any:
    """The value with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_to_device(item, device) for item in value)
    return value


def _process_set(process_group: Any) -> ProcessSet:
    """The ranks that the argument means. Raises TypeError, ValueError."""
    if process_group is None:
        return global_process_set
    ranks = getattr(process_group, "process_set", process_group)
    if not isinstance(ranks, ProcessSet):
        import torch.distributed as dist

        if process_group is getattr(dist.group, "WORLD", None):
            return global_process_set
        raise TypeError(
            f"process_group is {process_group!r}; it must be a process set, or a group of the backend byteps"
        )
    check_process_set(ranks)
    if not ranks.included():
        raise ValueError(f"rank {current_session().native.info()['rank']} is not part of {ranks}")
    return ranks


def _refuse(others: dict[str, Any], device_ids: Any, output_device: Any, dim: int) -> None:
    """Raises for what torch's class takes and this one cannot honour."""
    set_others = {name: value for name, value in others.items() if value not in (None, False)}
    known = {
        "delay_all_reduce_named_params",
        "param_to_hook_all_reduce",
        "mixed_precision",
        "device_mesh",
        "skip_all_reduce_unused_params",
        "bucket_cap_mb_list",
        "batched_grad_copy",
    }
    unknown = sorted(set(others) - known)
    if unknown:
        raise TypeError(f"DistributedDataParallel has no argument {unknown[0]!r}")
    if set_others:
        name, value = next(iter(set_others.items()))
        raise NotImplementedError(f"{name}={value!r} is not supported; leave it out")
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(f"device_ids is {device_ids}; one process has one device")
    if output_device is not None and device_ids and output_device != device_ids[0]:
        raise ValueError(f"output_device is {output_device}, and the module's device is {device_ids[0]}")
    if dim != 0:
        raise NotImplementedError(f"dim={dim}: inputs are not scattered over devices, so there is no other dimension")
