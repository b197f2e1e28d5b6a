"""An operation of the library as a primitive of JAX: to XLA a call with a side effect, which it must run as often as
the program says; to JAX a step like any other, where its version allows that (versions.starts_effects_in_python).

jax.ffi.ffi_call has one flag for both. With that flag JAX starts a program in Python, which takes about 5 us for each
of the program's arguments and results; without it XLA merges calls, and moves them out of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from byteps.jax import targets, versions
from byteps.reduce_op import Adasum

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

# Numbers or text, by name.
Attributes = tuple[tuple[str, int | tuple[int, ...] | str], ...]

_EFFECT = versions.starts_effects_in_python()


class _FfiCall(NamedTuple):
    """A call of jax.ffi that makes the same arrays: it knows what JAX asks of them, besides shape and dtype."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]

    def results(self, operands: Sequence[Any]) -> Any:
        """What stands for the results, by what stands for the operands; and the effects."""
        return self.primitive.abstract_eval(*operands, **dict(self.params))


def refuse_to_run_again() -> None:
    """Raises FloatingPointError where JAX runs a program again to find the step that has made a NaN or an infinity:
    another rank does not, and what is sent twice would meet what this rank sends next."""
    if versions.runs_again():
        raise FloatingPointError(
            "a program has made a NaN or an infinity, which jax_debug_nans or jax_debug_infs forbids. JAX has run it "
            "again, up to an operation of BytePS, which is not sent twice: the value comes from that operation or from "
            "what follows it"
        )


def call(
    target: str,
    result: jax.ShapeDtypeStruct,
    operands: Sequence[jax.Array],
    in_place: bool,
    attributes: Attributes,
) -> jax.Array:
    """The array that the handler `target` makes. `in_place`: in the memory of the first operand, if the program can
    give it away; its shape is then that of the operand, and vmap calls the handler once for a batch (of Adasum for each
    element). A call whose result is not used is no part of the program, unless it is an effect."""
    targets.PROGRAMS.have_operations()
    function = versions.ffi().ffi_call(target, result, has_side_effect=_EFFECT)
    (equation,) = jax.make_jaxpr(function)(*operands).eqns
    same = _FfiCall(equation.primitive, tuple(equation.params.items()))
    made: list[jax.Array] = _operation.bind(
        *operands, same=same, target=target, result=result, in_place=in_place, attributes=attributes
    )
    # What comes home to the devices of one process are tensors of their own.
    return versions.vary(made[0], versions.varying_axes(*operands))


def _run(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    """Outside of programs: a program of this alone."""
    refuse_to_run_again()
    with versions.with_jit():  # or the program would be a call of this function
        made: list[jax.Array] = jax.jit(partial(_operation.bind, **params))(*operands)
    return made


def _results(*operands: Any, same: _FfiCall, **_: Any) -> Any:
    return same.results(operands)


def _lower(
    context: mlir.LoweringRuleContext, *operands: Any, target: str, in_place: bool, attributes: Attributes, **_: Any
) -> Any:
    refuse_to_run_again()  # a program inside of the one that runs again
    aliases = {0: 0} if in_place else {}
    rule = versions.ffi().ffi_lowering(target, has_side_effect=True, operand_output_aliases=aliases)
    given = {name: value if isinstance(value, str) else np.asarray(value, np.int64)[()] for name, value in attributes}
    return rule(context, *operands, **given)


def _weigh() -> list[jax.Array]:
    """Work that XLA counts. A program on the CPU that has less than a thousand operations by XLA's count it runs to its
    end on the thread that starts it, also if that has to wait for the network, since a handler's call counts nothing;
    and JAX makes the errors of such runs ValueErrors, from the second on (jax-ml/jax#34083). This is another 2048, of a
    value that XLA does not know; it takes about 2 us."""
    mark = jax.ShapeDtypeStruct((), np.uint8)
    (unknown,) = versions.pure_call(targets.TOGETHER, (mark,), (), in_place=False)
    counted = lax.iota(np.float32, 2048) * unknown.astype(np.float32)
    versions.ffi().ffi_call(targets.TOGETHER, mark, has_side_effect=True)(counted)
    return []


def _lower_on_cpu(context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
    mlir.lower_fun(_weigh, multiple_results=True)(context.replace(avals_in=[], avals_out=[]))
    return _lower(context, *operands, **params)


def _batch(
    operands: Sequence[jax.Array],
    axes: Sequence[Any],
    *,
    target: str,
    result: jax.ShapeDtypeStruct,
    in_place: bool,
    attributes: Attributes,
    **_: Any,
) -> tuple[list[jax.Array], list[Any]]:
    """One call for a batch, if that is one tensor; else a call for each of its elements, one after another. Of Adasum,
    whose factors are those of a whole tensor, each element is one. Axes that are no int: the operand is the same for
    all elements. A batch whose array is the same for all, and only the number of the device is not (an axis that vmap
    has named), is one element."""
    batched = [isinstance(axis, int) for axis in axes]
    if batched[1:] == [True] and not batched[0]:
        device = lax.index_in_dim(operands[1], 0, axes[1], keepdims=False)
        made = call(target, result, (operands[0], device), in_place, attributes)
        return [made], [None]  # not mapped
    moved = [jnp.moveaxis(x, axis, 0) if isinstance(axis, int) else x for x, axis in zip(operands, axes)]
    if in_place and dict(attributes).get("op") != Adasum:
        whole = [x if in_batch else x[None] for x, in_batch in zip(moved, batched)]
        made = call(target, jax.ShapeDtypeStruct(whole[0].shape, result.dtype), whole, in_place, attributes)
        return [made], [0]

    def one(elements: list[jax.Array]) -> jax.Array:
        rest = iter(elements)
        chosen = [next(rest) if in_batch else x for x, in_batch in zip(moved, batched)]
        return call(target, result, chosen, in_place, attributes)

    return [lax.map(one, [x for x, in_batch in zip(moved, batched) if in_batch])], [0]


_operation = Primitive("bps_operation")
_operation.multiple_results = True
_operation.def_impl(_run)
_operation.def_effectful_abstract_eval(_results)
mlir.register_lowering(_operation, _lower)
if not _EFFECT:
    mlir.register_lowering(_operation, _lower_on_cpu, platform="cpu")
batching.primitive_batchers[_operation] = _batch
versions.allow_in_shard_map(_operation, lambda same, **_: (same.primitive, dict(same.params)))
