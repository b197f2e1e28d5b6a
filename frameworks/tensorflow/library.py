"""The ops in C++, and what TensorFlow must know of them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from byteps.arguments import reduction_fault
from byteps.reduce_op import ReduceOp
from byteps.shim import Shim
from byteps.versions import check_version

import tensorflow as tf

# The first has TF_NewAsyncKernelBuilder; with the last the tests have passed.
_OLDEST, _NEWEST = (2, 13), (2, 21)

# Unless told otherwise, TensorFlow runs stateful ops of a tf.function one after another.
_CONCURRENT = frozenset({"BytepsPushPull", "BytepsBroadcast", "BytepsCollective"})


def _is_of_a_loop(graph: Any, kinds: tuple[type, ...]) -> bool:
    """Whether the graph is that of a loop's body or condition, or of a branch or function that is traced in one."""
    while graph is not None:
        if isinstance(graph, kinds):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


class _Awaited(frozenset):
    """The kinds of ops that what a graph returns waits for, while they wait for nothing themselves: those given, and in
    loops also those of this package.

    Iterations of a loop would otherwise run at the same time, in an order of each rank's own, and the ranks would
    reduce different iterations with each other. So the variables of a loop wait for the ops of its body, and those for
    the variables of the iteration before. TensorFlow asks this set when a graph has been traced, of all of its ops:
    also those that it has made itself, of gradients and of vectorized_map.
    """

    loops: tuple[type, ...]

    def __contains__(self, kind: object) -> bool:
        if kind in _CONCURRENT:
            return _is_of_a_loop(tf.compat.v1.get_default_graph(), self.loops)
        return super().__contains__(kind)


def _let_run_concurrently() -> None:
    """Lets the ops of one tf.function run at the same time, as TensorFlow does with its own collective ops, but for
    iterations of loops. Where a future TensorFlow has other lists all run in the order in which they were traced, loops
    included: slower, and no less right."""
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.framework import auto_control_deps as lists
        from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph

        awaited = _Awaited(lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS)
        awaited.loops = (WhileBodyFuncGraph, WhileCondFuncGraph)
        lists.ASYNC_STATEFUL_OPS = frozenset(lists.ASYNC_STATEFUL_OPS) | _CONCURRENT
        lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = awaited


def _load() -> Any:
    check_version("byteps.tensorflow", "TensorFlow", tf.__version__, _OLDEST, _NEWEST)
    shim = Shim("tensorflow")
    module = tf.load_op_library(str(shim.path))
    missing = shim.library.bps_shim_tensorflow_missing
    missing.restype = ctypes.c_char_p
    if why := missing().decode(errors="replace"):
        raise ImportError(f"byteps.tensorflow cannot work with TensorFlow {tf.__version__}: {why}")
    if not hasattr(module, "byteps_push_pull"):
        raise ImportError(f"TensorFlow {tf.__version__} has not taken the ops of {shim.path}")
    shim.connect()
    _let_run_concurrently()
    return module


OPS = _load()


WIRE_TYPES = frozenset(
    {tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64}
    | {tf.bool, tf.complex64, tf.complex128}
)


def sendable(value: Any) -> tf.Tensor:
    """The argument of an operation as a tensor. Raises TypeError for a dtype that cannot be sent: before the operation
    gets a number, so that the ranks stay in step."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"a {type(value).__name__} cannot be sent; send the tensors that it consists of, or a dense one"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in WIRE_TYPES:
        known = ", ".join(sorted(dtype.name for dtype in WIRE_TYPES))
        raise TypeError(f"a tensor of dtype {tensor.dtype.name} cannot be sent; cast it to one of {known}")
    return tensor


def check_reduction(op: ReduceOp, tensor: tf.Tensor) -> None:
    """Raises tf.errors.InvalidArgumentError for a reduction that has no meaning for the tensor's data type; when, see
    sendable()."""
    if fault := reduction_fault(op, tensor.dtype.name):
        raise tf.errors.InvalidArgumentError(None, None, fault)


def check_device(argument: str, device: Any) -> None:
    """Raises TypeError for what tf.device() does not take. It would take a reduction, or a class, without a word: an
    argument that stands in the wrong place."""
    if device is None or isinstance(device, (str, tf.DeviceSpec, tf.config.LogicalDevice)):
        return
    if callable(device) and not isinstance(device, type):
        return
    raise TypeError(f'{argument} is {device!r}; it must be a device, such as "/CPU:0". Give what else is meant by name')


def refuse_xla() -> None:
    """Raises tf.errors.UnimplementedError inside of a function that XLA compiles, which has no way to the ops: at the
    line that traces one, where TensorFlow would speak of a kernel that is missing."""
    if tf.executing_eagerly():
        return
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise tf.errors.UnimplementedError(
            None,
            None,
            "BytePS cannot communicate inside of a function that XLA compiles. Use tf.function without jit_compile "
            "around it (functions inside may have it), and compile Keras models with jit_compile=False.",
        )
