"""DistributedOptimizer: an optimizer whose gradients are reduced over all workers during the backward pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

from byteps.arguments import check_passes
from byteps.asynchronous import Beginning, asynchronous_training, check_asynchronous
from byteps.reduce_op import Adasum, Average, ReduceOp, choose_op
from byteps.torch.adasum_optimizer import AdasumOptimizer, PassCounter
from byteps.torch.async_optimizer import AsyncOptimizer
from byteps.torch.base_optimizer import BaseOptimizer
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.distributed_class import is_distributed, make_distributed
from byteps.torch.gradient_groups import split_into_groups
from byteps.torch.gradient_names import GradientNames
from byteps.torch.overlapped_optimizer import OverlappedOptimizer, check_overlap
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.reducer import Reducer
from byteps.torch.scaling import factor_number

import torch


def _check_predivide(factor: float, op: ReduceOp) -> float:
    """Raises TypeError, ValueError."""
    number = factor_number("gradient_predivide_factor", factor)
    if number != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not number > 0 or math.isinf(number):
        raise ValueError(f"gradient_predivide_factor is {factor!r}; it must be a positive number")
    return number


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_buffers: bool = True,
    overlap_forward: torch.nn.Module | None = None,
) -> BaseOptimizer:
    """Makes an optimizer reduce its gradients over all workers before each step.

    The reduction of each gradient starts while the backward pass still computes the others, and the parameters that the
    next forward pass needs first go first, as the first iteration has shown (and another one when parameters join)::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * bps.size())
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)

    With ``overlap_forward=model`` the reduction goes on beneath the next forward pass, too, and step() waits for
    nothing. To know:

    - Call optimizer.zero_grad(); model.zero_grad() waits for everything.
    - The learning rate and other options are those at the time of step(); a scheduler may change them at once.
    - It is for optimizers that update each parameter by its own gradient and state: nearly all but torch.optim.LBFGS,
      which is refused. So is one that a trial with two small parameters shows to compute something over all gradients
      (a global norm), to do otherwise where another gradient is not finite, or to change its own attributes or
      param_groups in step() (a count of steps). One that cannot be tried, or uses parameters that it keeps elsewhere,
      is refused when that shows, in the first steps.
    - The first step waits as without it, and so does one with a closure, inside skip_synchronize(), or of an optimizer
      with step hooks. To clip, and with torch.amp.GradScaler: synchronize(), then step inside skip_synchronize().
    - Code that reads the memory of a parameter around PyTorch's functions, or through a tensor that has shared it since
      before step() (`parameter.data`, a state_dict()), calls optimizer.finish_step() first.
    - What torch.compile has made waits before its call for all parameters in it: compile first, and give what that
      returns. Compiled later it is right, too, but the hooks break its graphs. Parameters of TorchScript modules are
      waited for in step().
    - An error of the reduction is raised by what waits for it, mostly the next forward pass.

    Gradients of gradients: terms of the loss that are made of ``torch.autograd.grad(..., create_graph=True)``, such as
    a penalty on gradients, are this rank's own, as its loss is, and reach no hook; backward() of the whole loss sends
    its gradients as ever, once. So do not use ``backward(create_graph=True)`` for them: it sends gradients, p.grad
    holds the reduction behind step() or synchronize(), and what may be left of a graph behind it is that of this
    rank's gradient, not of the reduction.

    torch.utils.checkpoint: works, and gives the same bits. With use_reentrant=True each parameter may be used in one
    checkpoint alone, and not outside it: it would get several gradients in one backward pass, which is an
    AssertionError. use_reentrant=False has no such limit.

    The result cannot be pickled or copied (TypeError); save its state_dict().

    Args:
        optimizer: any torch.optim.Optimizer. Its state and options are shared, not copied; use the result from now on.
        named_parameters: such as model.named_parameters(): names of all the parameters, the same on all ranks. None:
            numbered, which needs optimizers to be made in the same order on all ranks. So do several models whose
            parameters have the same names: the gradients of each have names of their own, numbered in this order
            (unless the parameters themselves are those of an earlier optimizer: it is then in its place).
        compression: Compression.none, Compression.fp16 or Compression.bf16.
        backward_passes_per_step: gradients are sent after this many accumulations; they are not divided by it.
        op: Average or Sum, or another reduction. Adasum: step() takes the optimizer's own step by this rank's gradients
            alone, and the ranks' changes of the parameters are combined, behind the backward pass. Each rank clips for
            itself; a torch.amp.GradScaler that skips a step on some ranks only has the others wait for it.
        gradient_predivide_factor: with op=Average: gradients are divided by it before they are sent, and averages
            multiplied by it: what 16-bit gradients of many workers need, so that sums do not overflow.
        num_groups: Horovod's earlier name of `groups`, as a number.
        groups: gradients that are sent together, when the last of them is there: lists of parameters, or the number of
            groups to make. None: each is sent when it is there, which is faster. Ranks may have different groups, for
            gradients meet by their names; with op=Adasum a group is one operation, and the same on all ranks.
        sparse_as_dense: sparse gradients are made dense. Without it the rows that have values are sent, which is less
            where they are few; op is then Average or Sum.
        process_set: the ranks whose gradients are reduced. On the others the result does what the optimizer itself
            does.
        gradient_buffers: where a host has several workers, and shared memory, sums of large gradients go into memory of
            BytePS's own, which becomes p.grad: another tensor than the one that was there before. A gradient that
            something besides the parameter holds (a part of a flat buffer, a kept reference or view) is reduced in
            place; one that was kept from an earlier step stays what it was. False: sums replace all gradients in place,
            and no memory is used for them.
        overlap_forward: the model. step() then returns at once, and each module waits, just before its forward, until
            its own parameters are updated, while the gradients of later modules are still on their way. So does
            everything else that uses a parameter through PyTorch's functions, or that asks for the optimizer's state:
            evaluation, state_dict(), a copy, a checkpoint. The bits are those of training without it. See above.

    Returns:
        An instance of a subclass of the optimizer's own class, with synchronize(), skip_synchronize(),
        set_backward_passes_per_step() and finish_step() besides. A parameter without a gradient in a step contributes
        zeros. With one worker and no servers it does what the optimizer itself does.

    Raises:
        ValueError: before init(); `named_parameters` is not made of pairs, names something twice, or leaves parameters
            out; a lazy module has not made a parameter yet; the job does not know the process set;
            `backward_passes_per_step` is not positive; `groups` is neither a number nor lists of parameters, or has one
            twice; `gradient_predivide_factor` is not positive, or given without op=Average; overlap_forward with
            op=Adasum; the optimizer is torch.optim.LBFGS, which decides by each rank's own loss; overlap_forward with
            an optimizer that it is not for, or a model of other parameters.
        NotImplementedError: in backward(), a sparse gradient with an op that is neither Average nor Sum (nor Adasum,
            which sends no gradients).
        RuntimeError: in step(), if a gradient was changed since backward() without synchronize().
        TypeError: `optimizer`, `compression` or `overlap_forward` is something else; or the optimizer is one of these
            already.
        AssertionError: in backward(), when a gradient is computed more than backward_passes_per_step times before
            step(); in zero_grad(), while gradients are on their way.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer")
    if isinstance(optimizer, BaseOptimizer):
        raise TypeError("optimizer is a DistributedOptimizer already; give the optimizer that it was made from")
    check_compression(compression)
    check_passes(backward_passes_per_step)
    check_process_set(process_set)
    if overlap_forward is not None:
        check_overlap(optimizer, overlap_forward)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "torch.optim.LBFGS decides by each rank's own loss how often it evaluates, so ranks would part; it cannot "
            "be distributed"
        )
    op = choose_op(op, average=None, adasum=True)
    if op is Adasum and overlap_forward is not None:
        raise ValueError("overlap_forward sends gradients beneath the forward pass; op=Adasum sends none")
    predivide_factor = _check_predivide(gradient_predivide_factor, op)
    if num_groups != 0:
        warnings.warn("DistributedOptimizer's num_groups is Horovod's earlier name of groups", stacklevel=2)
        groups = num_groups if groups is None else groups
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    joined = split_into_groups(members, groups)
    asynchronous = asynchronous_training() and is_distributed(process_set)
    if asynchronous:
        check_asynchronous(
            op,
            compression=compression is not Compression.none,
            groups=bool(groups),
            gradient_predivide_factor=predivide_factor != 1.0,
            process_set=process_set is not global_process_set,
            overlap_forward=overlap_forward is not None,
        )
    names = GradientNames(optimizer, named_parameters, process_set)
    kind = PassCounter if asynchronous or op is Adasum else Reducer
    reducer = kind(
        compression,
        backward_passes_per_step,
        op,
        gradient_buffers,
        predivide_factor,
        joined,
        sparse_as_dense,
        process_set,
        only_sparse=isinstance(optimizer, torch.optim.SparseAdam),
    )
    shown = {
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": predivide_factor,
        "sparse_as_dense": sparse_as_dense,
    }
    if asynchronous:
        own = {"_groups": [], "_process_set": process_set, "_beginning": Beginning()}
        return make_distributed(optimizer, AsyncOptimizer, reducer, names, own, process_set, shown)
    if op is Adasum:
        combined = {"_groups": joined, "_process_set": process_set}
        return make_distributed(optimizer, AdasumOptimizer, reducer, names, combined, process_set, shown)
    if overlap_forward is None or not is_distributed(process_set):
        return make_distributed(optimizer, BaseOptimizer, reducer, names, None, process_set, shown)
    overlapped = make_distributed(optimizer, OverlappedOptimizer, reducer, names, None, process_set, shown)
    assert isinstance(overlapped, OverlappedOptimizer)
    overlapped._begin(overlap_forward)
    return overlapped
