"""Makes the backend, and the way to meet under bpslaunch, known to torch.distributed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from byteps import basics
from byteps.objects import broadcast_object

import torch

_NAME = "byteps"


def _make_group(options: Any, given: Any) -> Any:
    from byteps.torch.c10d.process_group import ProcessGroupBytePS

    del given
    return ProcessGroupBytePS(options)


def _own_address() -> str:
    """The address of this host at which the others of the job can reach it."""
    root = os.environ.get("DMLC_PS_ROOT_URI")
    if basics.size() == basics.local_size() or not root:
        return "127.0.0.1"
    family = socket.AF_INET6 if ":" in root else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((root, int(os.environ.get("DMLC_PS_ROOT_PORT") or 9)))
        return str(probe.getsockname()[0])


def _meet(url: str, timeout: timedelta = timedelta(minutes=5), **options: Any) -> Iterator[Any]:
    """torch.distributed's handler of byteps://: a store at rank 0, of which the job tells the others."""
    del url, options
    basics.init()
    rank, size = basics.rank(), basics.size()
    store = address = None
    if rank == 0:
        store = torch.distributed.TCPStore("0.0.0.0", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        address = (_own_address(), store.port)
    host, port = broadcast_object(address, 0, name="c10d.store")
    if store is None:
        store = torch.distributed.TCPStore(host, port, size, is_master=False, timeout=timeout)
    yield store, rank, size
    raise RuntimeError("the members of a job that was met by byteps:// do not change")


def register() -> None:
    """Registers the backend, once. Does nothing where PyTorch was built without torch.distributed."""
    if not torch.distributed.is_available() or hasattr(torch.distributed.Backend, _NAME.upper()):
        return
    torch.distributed.Backend.register_backend(_NAME, _make_group, extended_api=True, devices=["cpu", "cuda"])
    torch.distributed.register_rendezvous_handler(_NAME, _meet)
