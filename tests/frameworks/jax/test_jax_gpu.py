"""Programs for GPUs, as far as a machine without one can go: they are traced and lowered for CUDA and not run. What
their operations do is tests/frameworks/jax/native/gpu_handlers_test.cc."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp

pytestmark = pytest.mark.usefixtures("alone")


def _lowered(function: Callable[..., Any], *arguments: Any, platform: str = "cuda") -> str:
    """The program for GPUs."""
    return str(jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text())


def _calls(program: str) -> list[tuple[str, str]]:
    """Each operation of byteps.jax in the program, and its name."""
    return re.findall(r'custom_call @(bps_\w+)\(.*?name = "([^"]*)"', program)


def test_lowered_for_cuda() -> None:
    def step(x: jax.Array) -> Any:
        return bps.push_pull(x, name="x", priority=3), bps.broadcast(x, 0, name="b")

    program = _lowered(step, jnp.ones((3, 4)))
    assert sorted(_calls(program)) == [("bps_broadcast", "b"), ("bps_push_pull", "x")]
    assert "priority = 3" in program
    # Attributes of the typed FFI, which gives the stream.
    assert program.count("mhlo.backend_config = {") == 2


def test_the_program_is_that_of_the_cpu() -> None:
    def step(x: jax.Array) -> Any:
        return bps.push_pull(x, name="x")

    on_cpu, on_gpu = (_lowered(step, jnp.ones(5), platform=platform) for platform in ("cpu", "cuda"))
    assert _calls(on_cpu) == _calls(on_gpu) == [("bps_push_pull", "x")]


def test_exported_for_cuda() -> None:
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call("bps_push_pull")]
    program = jax.jit(lambda x: bps.push_pull(x, name="x"))
    exported = export.export(program, platforms=["cuda"], disabled_checks=checks)(jnp.ones(5))
    assert exported.platforms == ("cuda",)
    assert _calls(exported.mlir_module()) == [("bps_push_pull", "x")]


def test_a_pytree_exported_for_cuda() -> None:
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ("bps_push_pull", "bps_together")]
    program = jax.jit(lambda x: bps.push_pull([x, x + 1], name="x"))
    exported = export.export(program, platforms=["cuda"], disabled_checks=checks)(jnp.ones(5))
    assert sorted(_calls(exported.mlir_module())) == [("bps_push_pull", "x.0"), ("bps_push_pull", "x.1")]


def test_gradients_of_a_training_step() -> None:
    optimizer = bps.DistributedOptimizer(optax.sgd(0.1))
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        gradients = jax.grad(lambda p: jnp.sum((x @ p["w"] + p["b"]) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    program = _lowered(step, params, optimizer.init(params), jnp.ones((4, 3)))
    assert sorted(_calls(program)) == [("bps_push_pull", "Gradient.b"), ("bps_push_pull", "Gradient.w")]
