"""Several arrays of one program that travel at the same time.

XLA gives an array the memory of another that the program needs no more, and lets the former wait until the latter is
done with it. In a training step whose parameters are donated it computes a gradient, reduces it, updates the parameter,
and only then computes the next gradient, in the same memory: one or two gradients would travel at a time, without a
choice which is urgent, and ranks whose programs differ could wait for each other. So each array has memory of its own
until all of them have been computed:

    arrays, computed = start(arrays)
    reduced = [after(computed, push_pull(array)) for array in arrays]

What uses `reduced` waits for its own array to come home and for all to be computed, and not for others to come home.

Derivatives pass through: marks have none.

These are calls of a handler that does nothing, in place: XLA's own barrier (lax.optimization_barrier) is gone before
XLA orders a program and gives out memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from byteps.jax import targets, versions

import jax

_MARK = jax.ShapeDtypeStruct((1,), np.uint8)


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@jax.custom_vjp
def _marked(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The array, and what is there when it is."""
    same, mark = versions.pure_call(targets.TOGETHER, (_like(array), _MARK), (array,), in_place=True)
    return same, mark


_marked.defvjp(lambda array: (_marked(array), None), lambda _, gradients: (gradients[0],))


@jax.custom_vjp
def _after(array: jax.Array, mark: jax.Array) -> jax.Array:
    """The array, when `mark` is there."""
    (same,) = versions.pure_call(targets.TOGETHER, (_like(array),), (array, mark), in_place=True)
    return same


_after.defvjp(lambda array, mark: (_after(array, mark), None), lambda _, gradient: (gradient, None))


@jax.custom_vjp
def _all_computed(marks: tuple[jax.Array, ...]) -> jax.Array:
    """What is there when all of `marks` are."""
    (computed,) = versions.pure_call(targets.TOGETHER, (_MARK,), marks, in_place=False)
    return computed


_all_computed.defvjp(lambda marks: (_all_computed(marks), None), lambda _, gradient: (None,))


def start(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], jax.Array | None]:
    """The arrays, and what is there when all of them are; None if there is nothing to keep apart: outside of programs,
    and where there is one array."""
    if sum(versions.is_traced(array) for array in arrays) < 2:
        return list(arrays), None
    same, marks = zip(*map(_marked, arrays))
    return list(same), _all_computed(marks)


def after(computed: jax.Array | None, array: jax.Array) -> jax.Array:
    """The array, when all arrays of a `start` have been computed."""
    return array if computed is None else _after(array, computed)
