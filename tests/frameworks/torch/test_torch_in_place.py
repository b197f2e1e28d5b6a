"""Gradients that need little: what is one, and that they behave as the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import byteps.torch as bps
import pytest
import torch
from byteps.speed import SPEED
from byteps.torch.handle import Handle
from byteps.torch.in_place import InPlace, own_memory

RunWorkers = Callable[..., Any]


def test_which_tensors_have_memory_of_their_own() -> None:
    with torch.inference_mode():
        uncounted = torch.ones(3)
    whole = torch.ones(2, 3)
    memory = own_memory(whole)
    assert memory is not None and memory.data_ptr() == whole.data_ptr()
    assert own_memory(torch.ones(())) is not None and own_memory(torch.ones(0)) is not None
    for other in (
        None,
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(4)[:2],
        torch.ones(2, 3).t(),
        torch.ones(1).expand(3),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        uncounted,
    ):
        assert own_memory(other) is None


def _optimizer(parameters: list[torch.Tensor]) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    return bps.DistributedOptimizer(optimizer, [(f"p{number}", one) for number, one in enumerate(parameters)])


def _backward(parameters: list[torch.Tensor]) -> None:
    sum(((parameter * (bps.rank() + 1)).sum() for parameter in parameters), torch.zeros(())).backward()


def _together() -> None:
    """Sums, versions, and what is counted, of gradients that are waited for together."""
    bps.init()
    parameters: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(5)) for _ in range(3)]
    optimizer = _optimizer(parameters)
    recorded: list[int] = []
    SPEED.record = recorded.append  # type: ignore[method-assign]
    for _ in range(3):
        optimizer.zero_grad()
        _backward(parameters)
        items = list(optimizer._reducer.in_flight.values())
        assert [type(item) for item in items] == [InPlace] * 3
        recorded.clear()
        before = [parameter.grad._version for parameter in parameters]  # type: ignore[union-attr]
        optimizer.synchronize()
        assert sum(recorded) >= 3 * 5 * 4
        for parameter, version, item in zip(parameters, before, reversed(items)):
            assert parameter.grad is item.gradient and parameter.grad._version == version + 1
            assert torch.equal(parameter.grad, torch.full((5,), 1.5))
        with optimizer.skip_synchronize():
            optimizer.step()
    bps.shutdown()


def test_gradients_are_waited_for_together(run_workers: RunWorkers) -> None:
    run_workers(_together, workers=2)


def _handles() -> None:
    """Whoever asks for the handle of one may wait for it."""
    bps.init()
    parameters: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(5)) for _ in range(3)]
    optimizer = _optimizer(parameters)
    _backward(parameters)
    handle, context = optimizer._handles[parameters[1]]
    assert type(handle) is Handle and context is None and optimizer._handles[parameters[1]][0] is handle
    assert handle.synchronize() is parameters[1].grad
    optimizer._reducer.synchronize()
    assert all(torch.equal(parameter.grad, torch.full((5,), 1.5)) for parameter in parameters)  # type: ignore[arg-type]
    assert handle.synchronize() is parameters[1].grad
    bps.shutdown()


def test_a_handle_that_is_asked_for(run_workers: RunWorkers) -> None:
    run_workers(_handles, workers=2)


def _changes() -> None:
    """Another shape, another dtype, an error, and another session under the same name."""
    bps.init()
    parameter = torch.nn.Parameter(torch.zeros(4))
    other = torch.nn.Parameter(torch.zeros(4))
    optimizer = _optimizer([parameter, other])
    for shape, dtype in (
        ((4,), torch.float32),
        ((2, 3), torch.float32),
        ((2, 3), torch.float64),
        ((4,), torch.float32),
    ):
        parameter.grad = None
        parameter.data = torch.zeros(shape, dtype=dtype)
        parameter.grad = torch.full(shape, float(bps.rank()), dtype=dtype)
        optimizer.synchronize()
        assert parameter.grad.dtype is dtype and torch.equal(parameter.grad, torch.full(shape, 0.5, dtype=dtype))
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer._reducer.op = bps.Max if bps.rank() else bps.Sum
    _backward([parameter, other])
    with pytest.raises(bps.FailedPreconditionError, match=r"Gradient\.p"):
        optimizer.step()
    optimizer._reducer.op = bps.Sum
    optimizer.zero_grad()
    _backward([parameter, other])
    optimizer.synchronize()
    assert torch.equal(parameter.grad, torch.full((4,), 3.0))  # type: ignore[arg-type]
    bps.shutdown()
    with pytest.raises(ValueError, match=r"bps.init\(\)"):
        _backward([parameter, other])
    bps.init()
    optimizer.zero_grad()
    _backward([parameter, other])
    optimizer.synchronize()
    assert torch.equal(other.grad, torch.full((4,), 3.0))  # type: ignore[arg-type]
    bps.shutdown()


def test_what_was_prepared_changes(run_workers: RunWorkers) -> None:
    run_workers(_changes, workers=2)
