"""The handlers of libbyteps_jax.so, registered with XLA under their names."""

from __future__ import annotations

from byteps.jax import versions
from byteps.shim import Shim

versions.check()

PUSH_PULL = "bps_push_pull"
BROADCAST = "bps_broadcast"
COLLECTIVE = "bps_collective"

_SHIM = Shim("jax")

# Where arrays are in memory that the library cannot read, a handler says so.
_PLATFORMS = {"cpu": "bps_shim_jax_{}", "CUDA": "bps_shim_jax_refuse_device", "ROCM": "bps_shim_jax_refuse_device"}


def _register() -> None:
    ffi = versions.ffi()
    for target, handler in ((PUSH_PULL, "push_pull"), (BROADCAST, "broadcast"), (COLLECTIVE, "collective")):
        for platform, function in _PLATFORMS.items():
            ffi.register_ffi_target(target, ffi.pycapsule(_SHIM.library[function.format(handler)]), platform=platform)


_register()
versions.allow_in_transformations()
_SHIM.connect()
