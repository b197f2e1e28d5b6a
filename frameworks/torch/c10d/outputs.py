"""Where the results of torch.distributed's collectives go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from byteps import _native
from byteps.torch.device_streams import address, check_same_gpu, new_output
from byteps.torch.submission import Part
from byteps.torch.wire_buffer import check_dense, check_writable

import torch


def own_elements(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in a row, without its gradient."""
    return tensor.detach().reshape(-1)


def check_pair(tensor: torch.Tensor, output: torch.Tensor) -> None:
    """Refuses what no operation can read and write. Raises ValueError, TypeError."""
    check_dense(tensor)
    check_dense(output)
    check_writable(output)
    check_same_gpu(tensor, output)
    if tensor.dtype != output.dtype:  # the library sees the input's alone
        raise ValueError(f"the input is of {tensor.dtype}, and the output of {output.dtype}; they must be the same")


def check_pairs(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    check: Callable[[torch.Tensor, torch.Tensor], None] = check_pair,
) -> None:
    """Refuses lists of which one pair is refused, before any operation on them has its number, which would be another
    than on the other ranks from then on. Raises ValueError, TypeError."""
    if len(tensors) != len(outputs):
        raise ValueError(f"{len(tensors)} inputs were given, and {len(outputs)} outputs")
    for pair in zip(tensors, outputs):
        check(*pair)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The memory between its first and its last element."""
    if tensor.numel() == 0:
        return 0, 0
    reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    begin = address(tensor)
    return begin, begin + (reach + 1) * tensor.element_size()


def free_of(tensor: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], None] | None]:
    """What an operation of `tensor` may write for `output`, and what then copies it there. (FSDP gathers a part of a
    buffer into the whole.)"""
    if tensor.is_meta or output.is_meta or output.layout is not torch.strided:
        return output, None  # refused by what comes next
    first, second = _range(tensor), _range(output)
    if first[0] >= second[1] or second[0] >= first[1]:
        return output, None
    other = new_output(output)

    def copy(result: torch.Tensor) -> None:
        output.detach().copy_(result)

    return other, copy


def fill(outputs: Sequence[torch.Tensor]) -> Callable[[torch.Tensor, list[int]], None]:
    """What puts the elements that have come, and how many from each rank, into a list of tensors, if there is one."""

    def put(elements: torch.Tensor, counts: list[int]) -> None:
        if not outputs:
            return
        wanted = [output.numel() for output in outputs]
        if counts != wanted:
            raise ValueError(f"the outputs have {wanted} elements; {counts} have come from the ranks")
        for output, part in zip(outputs, elements.split(counts)):
            output.detach().copy_(part.view(output.shape))

    return put


def into_list(part: Part, outputs: Sequence[torch.Tensor]) -> Part:
    """The part, whose output has room for the elements of a list of tensors and is then copied there."""
    finish, put = part.finish, fill(outputs)

    def filled(ended: _native.Request, index: int) -> Any:
        counts = ended.result(index).splits
        put(finish(ended, index)[: sum(counts)], counts)

    part.finish = filled
    if part.device is not None:
        part.device.finishes = True
    return part


def check_rows(part: Part, output: torch.Tensor, rows: list[int] | None) -> Part:
    """The part, whose output must be filled, by these rows from each rank (None or none: whichever)."""
    finish = part.finish

    def checked(ended: _native.Request, index: int) -> Any:
        result = ended.result(index)
        if rows and result.splits != rows:
            raise ValueError(f"the output has room for {rows} rows from the ranks; {result.splits} have come")
        room = output.numel() * output.element_size()
        if len(result) != room:
            raise ValueError(f"the output has {room} bytes; {len(result)} bytes have come")
        return finish(ended, index)

    part.finish = checked
    return part
