"""What TensorFlow knows of the kernels in C++, for devices that this machine may not have."""

from __future__ import annotations

import pytest
from installed import framework

framework("tensorflow")

import byteps.tensorflow  # noqa: F401 - registers them
from tensorflow.python.framework import kernels, op_def_registry

_OPS = ["BytepsBroadcast", "BytepsCollective", "BytepsPushPull"]


def test_all_ops_are_looked_at() -> None:
    registered = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel}
    assert sorted(op for op in registered if op.startswith("Byteps")) == _OPS


@pytest.mark.parametrize("op", _OPS)
def test_tensors_of_a_gpu_come_through_host_memory(op: str) -> None:
    """The kernels read and write memory of the host: any tensor left out would be a pointer into a GPU's."""
    definition = op_def_registry.get(op)
    arguments = sorted(argument.name for argument in (*definition.input_arg, *definition.output_arg))
    registered = kernels.get_registered_kernels_for_op(op).kernel
    in_host_memory = {kernel.device_type: sorted(kernel.host_memory_arg) for kernel in registered}
    assert in_host_memory == {"CPU": [], "GPU": arguments}
    # One for all dtypes.
    assert len(registered) == 2 and not any(kernel.constraint for kernel in registered)
