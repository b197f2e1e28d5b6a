"""send_async and recv_async: a tensor of one rank, to one other."""

from __future__ import annotations

import hashlib

from byteps import _native
from byteps.arguments import tensor_name, whole_number
from byteps.torch.c10d.outputs import check_rows
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.process_set import global_process_set
from byteps.torch.submission import into_new, into_output, start_part
from byteps.torch.wire_buffer import check_dense, check_writable

import torch


def _tag(name: str | None) -> int:
    """What messages of this name meet by: a number of its own, behind those that programs choose themselves."""
    text = "" if name is None else tensor_name(name)
    return 1 << 62 | int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 4


def send_async(
    tensor: torch.Tensor, receiver: int, name: str | None = None, version: int = 0, priority: int = 0
) -> CollectiveHandle[torch.Tensor]:
    """Starts to send a tensor to a rank that calls recv_async() with the same name. The tensor must not change until
    the operation has ended.

    Args:
        tensor: of any shape.
        receiver: a rank of the job, another than this one.
        name: messages of one name between two ranks, or of none, arrive in the order in which they were sent.
        version: accepted for compatibility.
        priority: larger is sooner.

    Returns:
        A handle; synchronize() returns the tensor when it was sent.

    Raises:
        ValueError: before init(), no rank or this one, a tensor that cannot be sent.
        TypeError: not a tensor, or an argument of a wrong type.
    """
    del version
    check_dense(tensor)
    options = {"peer": whole_number("receiver", receiver), "tag": _tag(name)}
    return start_part(into_new(_native.SEND, tensor, "", global_process_set, priority, lambda *none: tensor, options))


def recv_async(
    tensor: torch.Tensor, sender: int, name: str | None = None, version: int = 0, priority: int = 0
) -> CollectiveHandle[torch.Tensor]:
    """Starts to receive what a rank sends with send_async() and the same name into `tensor`, which must be neither
    changed nor read until the operation has ended.

    Args:
        tensor: of the sender's shape and dtype.
        sender: a rank of the job, another than this one.
        name, version, priority: as send_async()'s.

    Returns:
        A handle; synchronize() returns the tensor, and raises BytePSError or ValueError where another shape or dtype
        has come.

    Raises:
        What send_async() raises.
    """
    del version
    check_dense(tensor)
    check_writable(tensor)
    options = {"peer": whole_number("sender", sender), "tag": _tag(name)}
    part = into_output(_native.RECEIVE, tensor, tensor, None, global_process_set, priority, None, options)
    return start_part(check_rows(part, tensor, None))
