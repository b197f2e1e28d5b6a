"""What has another name or place in another version of JAX. Everything else here is written for all of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from byteps.versions import check_version

import jax
from jax import core, lax

OLDEST, NEWEST = (0, 4, 38), (0, 10)  # with the last the tests have passed


def check() -> None:
    """Raises ImportError for a JAX that is too old; warns of one that is newer than all tested ones."""
    check_version("byteps.jax", "JAX", jax.__version__, OLDEST, NEWEST, "its typed FFI")


def ffi() -> Any:
    """The module of the typed FFI."""
    try:
        import jax.ffi
    except ImportError:
        import jax.extend.ffi

        return jax.extend.ffi
    return jax.ffi


def watch_errors(seen: Callable[[str], None]) -> bool:
    """Calls `seen` with the text of every JaxRuntimeError that comes to Python. Whether this version lets it."""
    kind: Any = jax.errors.JaxRuntimeError
    make = kind.__init__

    def init(error: Any, *arguments: Any, **keywords: Any) -> None:
        make(error, *arguments, **keywords)
        seen(str(error))

    try:
        kind.__init__ = init
    except (AttributeError, TypeError):
        return False
    return True


def starts_effects_in_python() -> bool:
    """Whether an operation is an effect to JAX, which starts such programs in Python. Before JAX 0.9 it has to be: the
    errors of programs that do not run on the calling thread have lost their code in some versions, and shard_map does
    not take a call without operands."""
    return jax.__version_info__ < (0, 9)


def allow_in_transformations() -> None:
    """Lets custom_vjp, loops and jax.checkpoint hold operations, also where a version of JAX refuses FFI calls with
    side effects. Ours have one so that none is left out or merged with another; what runs one again does so on all
    ranks."""
    try:
        from jax._src import effects

        try:
            from jax._src.ffi import FfiEffect
        except ImportError:
            from jax._src.extend.ffi import FfiEffect
        for allowed in (
            effects.control_flow_allowed_effects,
            effects.custom_derivatives_allowed_effects,
            effects.remat_allowed_effects,
        ):
            allowed.add_type(FfiEffect)
    except (ImportError, AttributeError):
        return


def allow_in_shard_map(primitive: Any, likeness: Callable[..., tuple[Any, dict[str, Any]]]) -> None:
    """Lets shard_map hold `primitive`, also where a version of JAX has rules of its own about the results of each.
    `likeness`: another primitive and its parameters, by the parameters of this one, whose results are the same."""
    try:
        from jax.experimental.shard_map import _check_rules, register_standard_rewrite
    except ImportError:
        return

    def check(mesh: Any, *operands: Any, **params: Any) -> Any:
        other, given = likeness(**params)
        return _check_rules[other](mesh, *operands, **given)

    _check_rules[primitive] = check
    register_standard_rewrite(primitive)


def pure_call(
    target: str, results: tuple[jax.ShapeDtypeStruct, ...], operands: tuple[jax.Array, ...], in_place: bool
) -> tuple[jax.Array, ...]:
    """The arrays that the handler `target` makes, which has no effect but those; the first in the memory of the first
    operand with `in_place`."""
    aliases = {0: 0} if in_place else {}
    function = ffi().ffi_call(target, results, vmap_method="broadcast_all", input_output_aliases=aliases)
    axes = varying_axes(*operands)
    made: tuple[jax.Array, ...] = tuple(vary(array, axes) for array in function(*operands))
    return made


def varying_axes(*arrays: Any) -> frozenset[Any]:
    """The axes of shard_map over which any of the arrays differs between devices, as far as its check knows; none where
    this version of JAX finds that out from the operations."""
    if not hasattr(jax, "typeof"):
        return frozenset()
    types = [jax.typeof(array) for array in arrays]
    kinds = [getattr(of, "manual_axis_type", None) for of in types]
    return frozenset().union(
        *(getattr(of, "vma", ()) if kind is None else kind.varying for of, kind in zip(types, kinds))
    )


def vary(array: Any, axes: Iterable[Any]) -> Any:
    """`array`, which shard_map's check takes to differ between the devices of these axes. To it a call of a handler
    makes the same array on all of them."""
    more = tuple(axis for axis in axes if axis not in varying_axes(array))
    if not more:
        return array
    if hasattr(lax, "pcast"):
        return lax.pcast(array, more, to="varying")
    return lax.pvary(array, more) if hasattr(lax, "pvary") else array


def devices_mapped_over() -> tuple[Any, ...]:
    """The names of the axes of shard_map and pmap around the code that is being traced: it runs once on each of their
    devices. Axes that vmap names may be among them, whose one run has the numbers of all."""
    try:
        from jax._src.core import get_axis_env

        return tuple(name for name, size in get_axis_env().axis_sizes.items() if size > 1)
    except (ImportError, AttributeError):
        # Not all versions' pmap is known here.
        mesh = jax.sharding.get_abstract_mesh()
        axes = zip(mesh.axis_names, mesh.axis_types, mesh.axis_sizes)
        return tuple(name for name, kind, size in axes if size > 1 and str(kind).endswith("Manual"))


def devices_checked() -> frozenset[Any]:
    """Those of devices_mapped_over() for which shard_map checks which arrays differ between devices."""
    axes = devices_mapped_over()
    return varying_axes(lax.axis_index(axes)) if axes else frozenset()


def outermost_trace() -> Any | None:
    """What stands for the program that is being traced, loops, branches and programs inside of it included; outside of
    programs, for the derivative that is being computed. None where there is neither, and in versions of JAX whose
    traces do not tell what they are part of."""
    try:
        from jax._src.core import trace_ctx
    except ImportError:
        return None
    found, trace = None, trace_ctx.trace
    while trace is not None and hasattr(trace, "parent_trace"):
        found, trace = trace, trace.parent_trace
    return found if trace is None or type(trace).__name__ == "EvalTrace" else None


def in_program() -> bool:
    """Whether a program is being traced. Arrays that it closes over are known already, and what is done with them is
    part of it all the same."""
    try:
        from jax._src.core import trace_ctx
    except ImportError:
        return False
    trace = trace_ctx.trace
    while trace is not None and type(trace).__name__ != "DynamicJaxprTrace":
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def runs_again() -> bool:
    """Whether JAX runs a program for a second time, step by step: it has found a NaN or an infinity in the results,
    which jax_debug_nans or jax_debug_infs forbids, and looks for the step that it comes from."""
    error = sys.exc_info()[1]  # JAX does that while it handles this error
    # (What handles the error that came of it has it as context.)
    while error is not None and not isinstance(error, FloatingPointError):
        if type(error).__name__ == "InternalFloatingPointError":
            return True
        error = error.__context__
    return False


def is_traced(value: Any) -> bool:
    """Whether `value` stands for one that is not known yet."""
    return isinstance(value, core.Tracer)


def is_committed(array: Any) -> bool:
    """Whether `array` is bound to its devices; one that is not may go to those of other arrays of a program. The public
    name has not been there in all versions."""
    return bool(getattr(array, "committed", getattr(array, "_committed", True)))


def with_jit() -> contextlib.AbstractContextManager[Any]:
    """Where jax.jit compiles, also beneath a caller's jax.disable_jit()."""
    return jax.disable_jit(False) if jax.config.jax_disable_jit else contextlib.nullcontext()
