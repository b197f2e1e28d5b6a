"""Programs with several streams on a GPU (simulated ones, fake_cuda.py): who waits for whom, for what the host waits,
and what memory is held.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
import torch.distributed as dist
from byteps.torch.completions import when_done
from fake_cuda import FakeCuda, fake_gpus, gpus_of_job
from process_group import begin, end
from torch import nn

RunWorkers = Callable[..., Any]

STEPS = 5


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))


def _batch(step: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + bps.rank()))


def _train(
    model: nn.Module,
    place: Callable[[torch.Tensor], torch.Tensor],
    prefix: str,
    between: Callable[[Any], None],
    before: Callable[[], None] = lambda: None,
) -> None:
    """`between`: called behind each step() but the last; `before`: before each."""
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        [(prefix + name, parameter) for name, parameter in model.named_parameters()],
        overlap_forward=model,
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(place(_batch(step))) ** 2).mean().backward()
        before()
        optimizer.step()
        if step != STEPS - 1:
            between(optimizer)
    optimizer.finish_step()


def _same(gpu: FakeCuda, found: nn.Module, expected: nn.Module) -> None:
    for mine, theirs in zip(found.parameters(), expected.parameters()):
        assert torch.equal(gpu.read(mine), theirs.detach())


def _averages() -> None:
    """Averages of the parameters, made in a stream of their own right behind each step."""
    with gpus_of_job() as gpu:
        reference = _model()
        expected = [parameter.detach().clone() for parameter in reference.parameters()]
        model = gpu.model(reference)
        averages = [gpu.tensor(one) for one in expected]
        main, side = gpu.current(0), gpu.new_stream()
        gpu.order(main, side)  # the averages are there

        def averaged(optimizer: Any) -> None:
            gpu.order(main, side)
            with gpu.stream(side):
                for average, parameter in zip(averages, model.parameters()):
                    average.lerp_(parameter.detach(), 0.1)

        def averaged_on_host(optimizer: Any) -> None:
            for average, parameter in zip(expected, reference.parameters()):
                average.lerp_(parameter.detach(), 0.1)

        waits = gpu.counts()["synchronisations"]
        # What the next step writes is read before: the program says so, as it has to without overlap.
        _train(model, gpu.tensor, "gpu.", averaged, lambda: gpu.order(side, main))
        assert gpu.counts()["synchronisations"] == waits, "the host waited for the GPU"
        _train(reference, lambda batch: batch, "cpu.", averaged_on_host)
        _same(gpu, model, reference)
        with gpu.stream(side):
            for average, right in zip(averages, expected):
                assert torch.equal(gpu.read(average), right)


def _model_in_other_stream() -> None:
    """The forward pass, too, in a stream that has not touched the parameters."""
    with gpus_of_job() as gpu:
        reference = _model()
        model = gpu.model(reference)
        main, side, third = gpu.current(0), gpu.new_stream(), gpu.new_stream()

        def evaluated(optimizer: Any) -> None:
            # Both have waited before any update is there.
            gpu.order(main, side)
            gpu.order(main, third)
            with gpu.stream(side):
                first = next(model.parameters()).detach() * 1
            with gpu.stream(third):
                found = model(gpu.tensor(_batch(7)))
                optimizer.state  # noqa: B018
                (found * 1).detach()
            gpu.order(side, main)
            gpu.order(third, main)
            del first

        waits = gpu.counts()["synchronisations"]
        _train(model, gpu.tensor, "third.gpu.", evaluated)
        assert gpu.counts()["synchronisations"] == waits, "the host waited for the GPU"
        _train(reference, lambda batch: batch, "third.cpu.", lambda optimizer: None)
        _same(gpu, model, reference)


@pytest.mark.parametrize(("servers", "schedule"), [(1, "late"), (1, "random"), (1, "late,patience=300"), (0, "random")])
@pytest.mark.parametrize("body", [_averages, _model_in_other_stream])
def test_updates_are_ordered_for_every_stream(
    run_workers: RunWorkers, body: Callable[[], None], servers: int, schedule: str
) -> None:
    """overlap_forward, with a stream that touches the parameters before the forward pass does. Without a server the
    GPUs reduce among themselves."""
    run_workers(body, servers=servers, **fake_gpus(schedule))


def _captured() -> None:
    with gpus_of_job() as gpu:
        model = gpu.model(_model())
        side = gpu.new_stream()

        def touched(optimizer: Any) -> None:
            parameter = next(model.parameters())
            gpu.capture(side, True)
            if parameter in optimizer._reducer.pending:
                with gpu.stream(side), pytest.raises(bps.FailedPreconditionError, match="captured into a CUDA graph"):
                    parameter.detach()
            optimizer.finish_step()
            with gpu.stream(side):
                optimizer.finish_step()  # what is updated may be used in a graph
            gpu.capture(side, False)

        _train(model, gpu.tensor, "captured.", touched)


def test_a_stream_that_is_captured_beside_updates(run_workers: RunWorkers) -> None:
    run_workers(_captured, **fake_gpus("late"))


def _threads() -> None:
    delayed, go = threading.Event(), threading.Event()

    class Slow(torch.Tensor):
        """A copy to it takes its time."""

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.copy_ and threading.current_thread() is not threading.main_thread():
                delayed.set()
                assert go.wait(60)
            return super().__torch_function__(function, types, args, kwargs or {})

    bps.init()
    column = torch.ones(3000, 2).as_subclass(Slow)[:, 1]
    handle = bps.push_pull_async_inplace(column, average=False, name="column")
    ended = threading.Event()
    found: list[torch.Tensor] = []

    def second() -> None:
        found.append(bps.synchronize(handle).detach().as_subclass(torch.Tensor).clone())
        ended.set()

    when_done(handle, lambda output, error: None)
    assert delayed.wait(60)
    thread = threading.Thread(target=second)
    thread.start()
    # The second one has nothing to wait for but the copy.
    assert not ended.wait(0.5), "synchronize() has returned before the output was written"
    go.set()
    thread.join(60)
    assert torch.equal(found[0], torch.full((3000,), float(bps.size())))
    bps.shutdown()


def test_synchronize_on_two_threads(run_workers: RunWorkers) -> None:
    """Of one handle whose output is copied to its place: none returns before it is there."""
    run_workers(_threads)


class _Bucket:
    """A torch.distributed.GradBucket of one parameter."""

    def __init__(self, buffer: torch.Tensor, parameter: torch.Tensor) -> None:
        self._buffer, self._parameter = buffer, parameter

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def index(self) -> int:
        return 0


def _told(start: Callable[[], Any], gpu: FakeCuda) -> dict[str, int]:
    """Starts an operation whose future is told while the current stream is held up; the GPU's counts of it."""
    before = gpu.counts()
    told = threading.Event()
    future = start()
    release = gpu.hold(gpu.current(0))
    future.then(lambda ended: (ended.value(), told.set()))
    in_time = told.wait(60)
    release()
    assert in_time, "the future waits for what the stream of the program holds"
    after = gpu.counts()
    return {what: after[what] - before[what] for what in after}


def _futures() -> None:
    with gpus_of_job() as gpu:
        begin()
        size = bps.size()
        x = gpu.tensor(torch.ones(5000))
        outs = [gpu.tensor(torch.zeros(5000)) for _ in range(size)]
        wide = gpu.tensor(torch.ones(5000, 2))
        parameter, buffer = nn.Parameter(gpu.tensor(torch.ones(3))), gpu.tensor(torch.full((5000,), 2.0))
        half = bps.CommHookState(bps.Compression.fp16)
        plain = {
            "all_reduce": lambda: dist.all_reduce(x, async_op=True).get_future(),
            "comm_hook": lambda: bps.comm_hook(None, _Bucket(buffer, parameter)),
        }
        for what, start in plain.items():
            assert _told(start, gpu)["synchronisations"] == 0, what
        copied = {
            "all_gather": lambda: dist.all_gather(outs, x, async_op=True).get_future(),
            "gaps": lambda: dist.all_reduce(wide[:, 1], async_op=True).get_future(),
            "fp16": lambda: bps.comm_hook(half, _Bucket(buffer, parameter)),
        }
        for what, start in copied.items():
            assert _told(start, gpu)["synchronisations"] <= 1, what
        assert torch.equal(gpu.read(x), torch.full((5000,), float(size)))
        assert torch.equal(gpu.read(outs[1]), torch.full((5000,), float(size)))
        assert torch.equal(gpu.read(wide)[:, 1], torch.full((5000,), float(size)))
        assert torch.equal(gpu.read(buffer), torch.full((5000,), 2.0))
        end()


@pytest.mark.parametrize(("servers", "schedule"), [(1, "late"), (1, "random"), (0, "random")])
def test_futures_wait_for_no_stream_of_the_program(run_workers: RunWorkers, servers: int, schedule: str) -> None:
    """comm_hook and the backend byteps: the host waits for its own copies alone, and for none where there are none."""
    run_workers(_futures, servers=servers, **fake_gpus(schedule))


class _Broken(bps.Compression.fp16):
    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        raise ValueError("it cannot be decompressed")


def _undone() -> None:
    bps.init()
    told = threading.Event()
    state, parameter = bps.CommHookState(_Broken), nn.Parameter(torch.ones(3))
    future = bps.comm_hook(state, _Bucket(torch.ones(3000), parameter))
    future.then(lambda ended: told.set())
    assert told.wait(60), "the future has not ended"
    with pytest.raises(ValueError, match="cannot be decompressed"):
        future.wait()
    bps.shutdown()


def test_an_error_behind_the_operation_ends_the_future(run_workers: RunWorkers) -> None:
    run_workers(_undone)


def _released(thread: bool) -> None:
    with gpus_of_job() as gpu:
        gone: list[int] = []

        def dropped() -> None:
            for number in range(40):
                x = gpu.tensor(torch.ones(5000))
                weakref.finalize(x.block, gone.append, number)
                bps.synchronize(bps.push_pull_async_inplace(x, average=False, name=f"x.{number}"))
                del x
            group = [gpu.tensor(torch.ones(3000)) for _ in range(2)]
            for number, one in enumerate(group):
                weakref.finalize(one.block, gone.append, 40 + number)
            bps.synchronize(bps.grouped_allreduce_async_(group, op=bps.Sum, name="group"))

        if thread:
            worker = threading.Thread(target=dropped)
            worker.start()
            worker.join()
        else:
            dropped()
        # No call of BytePS from here on: the program computes.
        deadline = time.monotonic() + 60
        while len(gone) < 42:
            assert time.monotonic() < deadline, f"memory of {42 - len(gone)} tensors is still held"
            time.sleep(0.001)


@pytest.mark.parametrize("thread", [False, True])
def test_memory_of_dropped_handles_is_let_go_of(run_workers: RunWorkers, thread: bool) -> None:
    """When the copies have ended, whether or not the program calls BytePS again."""
    run_workers(_released, thread, **fake_gpus("late,patience=3000"))  # (Copies end long after synchronize().)


# A driver whose GPUs are simulated; tools/test keeps a copy of its own.
_STANDINS = Path(os.environ.get("GPU_STANDINS") or Path(__file__).parents[3] / "bazel-bin/tests/device_plugins/cuda")

_NEW_STREAMS = """
from byteps.torch.cuda_driver import new_stream

made = [new_stream(0), new_stream(0), new_stream(1)]
assert all(made) and len(set(made)) == 3, made
try:
    new_stream(2)
except RuntimeError as error:
    assert "GPU 2: cu" in str(error), error
else:
    raise AssertionError("there is no GPU 2")
"""


def test_streams_of_the_driver() -> None:
    """Each is a new one, where those of PyTorch's pool come again."""
    folder = _STANDINS / "standin"
    assert (folder / "libcuda.so.1").exists(), "bazel build //tests/device_plugins/cuda:standin/libcuda.so.1"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "BYTEPS_FAKE_GPU": "devices=2"}
    subprocess.run([sys.executable, "-c", _NEW_STREAMS], env=environment, check=True, timeout=300)
