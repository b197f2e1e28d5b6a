"""What has another name or place in another version of JAX. Everything else here is written for all of them."""

from __future__ import annotations

from typing import Any

import jax
from jax import core

OLDEST = (0, 4, 38)


def check() -> None:
    """Raises ImportError for a JAX that is too old."""
    if jax.__version_info__ < OLDEST:
        raise ImportError(
            f"byteps.jax needs JAX {'.'.join(map(str, OLDEST))} or newer (its typed FFI); this is {jax.__version__}"
        )


def ffi() -> Any:
    """The module of the typed FFI."""
    try:
        import jax.ffi
    except ImportError:
        import jax.extend.ffi

        return jax.extend.ffi
    return jax.ffi


def allow_in_checkpoint() -> None:
    """Lets jax.checkpoint recompute operations: it does so alike on all ranks. Some versions of JAX refuse it for FFI
    calls with side effects, which ours are so that none is left out or merged with another."""
    try:
        from jax._src import effects
        from jax._src.ffi import FfiEffect
    except ImportError:
        return
    effects.remat_allowed_effects.add_type(FfiEffect)


def call(
    target: str, result: jax.ShapeDtypeStruct, operands: tuple[jax.Array, ...], in_place: bool, **attributes: Any
) -> jax.Array:
    """The array that the handler `target` makes. `in_place`: in the memory of the first operand, if the program can
    give it away."""
    options: dict[str, Any] = {"has_side_effect": True, "vmap_method": "expand_dims"}
    if in_place:
        options["input_output_aliases"] = {0: 0}
    made: jax.Array = ffi().ffi_call(target, result, **options)(*operands, **attributes)
    return made


def devices_mapped_over() -> tuple[str, ...]:
    """The names of the axes of shard_map and pmap around the code that is being traced: it runs once on each of their
    devices. Axes that vmap names are none, where JAX tells them apart."""
    try:
        mesh = jax.sharding.get_abstract_mesh()
        manual = [name for name, kind in zip(mesh.axis_names, mesh.axis_types) if str(kind).endswith("Manual")]
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes))
        return tuple(name for name in manual if sizes[name] > 1)
    except AttributeError:
        pass
    try:
        from jax._src.core import get_axis_env

        return tuple(str(name) for name, size in get_axis_env().axis_sizes.items() if size > 1)
    except (ImportError, AttributeError):
        return ()


def is_traced(value: Any) -> bool:
    """Whether `value` stands for one that is not known yet."""
    return isinstance(value, core.Tracer)
