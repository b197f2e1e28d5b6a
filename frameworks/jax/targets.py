"""The handlers of libbyteps_jax.so, registered with XLA under their names."""

from __future__ import annotations

from byteps.jax import versions
from byteps.jax.programs import Programs
from byteps.shim import Shim

versions.check()

PUSH_PULL = "bps_push_pull"
BROADCAST = "bps_broadcast"
COLLECTIVE = "bps_collective"
TOGETHER = "bps_together"

_SHIM = Shim("jax")

# The handler of each target, by platform. Where none takes the memory, there is one that says so.
_REFUSE = "refuse_device"
_HANDLERS = {
    PUSH_PULL: {"cpu": "push_pull", "CUDA": "push_pull_on_gpu", "ROCM": _REFUSE},
    BROADCAST: {"cpu": "broadcast", "CUDA": "broadcast_on_gpu", "ROCM": _REFUSE},
    COLLECTIVE: {"cpu": "collective", "CUDA": "collective_on_gpu", "ROCM": _REFUSE},
    TOGETHER: {"cpu": "together", "CUDA": "together", "ROCM": "together"},
}


def _register() -> None:
    ffi = versions.ffi()
    for target, handlers in _HANDLERS.items():
        for platform, handler in handlers.items():
            function = _SHIM.library[f"bps_shim_jax_{handler}"]
            ffi.register_ffi_target(target, ffi.pycapsule(function), platform=platform)


_register()
versions.allow_in_transformations()
_SHIM.connect()
PROGRAMS = Programs(_SHIM.library)
