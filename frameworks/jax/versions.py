"""What has another name or place in another version of JAX. Everything else here is written for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.versions import check_version

import jax
from jax import core

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
    made: tuple[jax.Array, ...] = tuple(function(*operands))
    return made


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


def is_traced(value: Any) -> bool:
    """Whether `value` stands for one that is not known yet."""
    return isinstance(value, core.Tracer)
