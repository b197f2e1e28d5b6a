"""Is byteps.torch working here?  python -m byteps.torch.check

By itself it is one worker alone; under bpslaunch, torchrun or another launcher the whole job takes part::

    bpslaunch --workers 2 -- python -m byteps.torch.check

It says what it finds, step by step, and ends with 0 if everything works.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import byteps.torch as bps

import torch


def _expect(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        raise AssertionError(f"{what}: found {found.tolist()}, expected {expected.tolist()}")


def _sums() -> str:
    size = bps.size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        result = bps.push_pull(torch.full((3,), bps.rank() + 1, dtype=dtype), average=False, name=f"check.{dtype}")
        _expect(f"the sum of {dtype}", result, torch.full((3,), size * (size + 1) // 2, dtype=dtype))
    return "float32, float16, bfloat16, int64"


def _large() -> str:
    tensor = bps.empty(16 << 20)
    tensor.fill_(1.0)
    bps.push_pull_inplace(tensor, average=False, name="check.large")
    start = time.perf_counter()
    bps.push_pull_inplace(tensor, average=True, name="check.large")
    seconds = time.perf_counter() - start
    _expect("the average of a large tensor", tensor[::1000000], torch.full((17,), float(bps.size())))
    return f"64 MiB in {1000 * seconds:.0f} ms"


def _training() -> str:
    torch.manual_seed(bps.rank())
    model = torch.nn.Linear(4, 2)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), 0)
    model(torch.full((1, 4), float(bps.rank()))).sum().backward()
    optimizer.step()
    _expect("the weights after a step", model.weight.detach(), bps.broadcast(model.weight.detach(), 0))
    return "equal weights on all workers"


def _devices() -> str:
    if not torch.cuda.is_available():
        return "no GPU: tensors are in host memory"
    result = bps.push_pull(torch.ones(3, device="cuda"), average=True, name="check.cuda")
    _expect("a tensor of the GPU", result.cpu(), torch.ones(3))
    return f"{torch.cuda.get_device_name()}: in order with its streams"


def _steps() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "sums", _sums
    yield "a large tensor", _large
    yield "a training step", _training
    yield "devices", _devices


def main() -> int:
    """Runs the steps; the exit status."""
    try:
        bps.init()
    except Exception as error:  # whatever it is, it is what the user wants to know
        print(f"FAIL init: {error}", flush=True)
        return 1
    job = bps.info()
    says = print if job.rank == 0 else lambda *values, **options: None
    says(f"byteps {bps.__version__}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    says(f"ok   init: {job.size} workers, {job.num_servers} servers, {job.transport}, {job.scheduler}", flush=True)
    status = 0
    for name, step in _steps():
        try:
            says(f"ok   {name}: {step()}", flush=True)
        except Exception as error:  # the others would wait: it ends here
            print(f"FAIL {name} (rank {job.rank}): {error}", flush=True)
            status = 1
            break
    bps.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
