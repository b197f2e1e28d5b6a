"""Arrays without a framework, in one process: what is taken, what is refused, and who holds the memory."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import subprocess
import sys
import weakref
from typing import Any

import byteps
import numpy as np
import pytest
from jobs import DEADLINE

pytestmark = pytest.mark.usefixtures("alone")

_DTYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_numpy(dtype: str) -> None:
    values = np.array([[1, 0, 3], [4, 5, 6]]).astype(dtype)
    result = byteps.push_pull(values, average=False)
    assert result is not values
    assert (result.dtype, result.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(result, values)
    output = np.zeros_like(values)
    assert byteps.broadcast(values, 0, output) is output
    np.testing.assert_array_equal(output, values)
    assert byteps.push_pull(output, output, average=False) is output
    np.testing.assert_array_equal(output, values)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 1, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert byteps.push_pull(np.ones(shape)).shape == shape


def test_whatever_has_the_buffer_protocol() -> None:
    page = mmap.mmap(-1, 4096)
    page[:3] = b"abc"
    for values in (bytearray(b"abc"), array.array("d", [1, 2]), (ctypes.c_int64 * 3)(1, 2, 3), page, byteps.buffer(8)):
        before = bytes(memoryview(values).cast("B"))
        assert byteps.push_pull(values, values, average=False) is values
        assert bytes(memoryview(values).cast("B")) == before
    assert byteps.push_pull(b"abc", average=False).tobytes() == b"abc"  # read-only: an input
    floats = memoryview(bytearray(16)).cast("f", [2, 2])
    assert byteps.push_pull(floats).shape == (2, 2)


class _Dlpack:
    """DLPack and nothing else."""

    def __init__(self, owner: Any, old: bool) -> None:
        self.owner, self.old = owner, old

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword")
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.owner.__dlpack_device__()


@pytest.mark.parametrize("old", [True, False])
def test_dlpack(old: bool) -> None:
    values = np.arange(6.0).reshape(2, 3)
    tensor = _Dlpack(values, old)
    np.testing.assert_array_equal(byteps.push_pull(tensor), values)
    assert byteps.push_pull(tensor, tensor, op=byteps.Max) is tensor
    with pytest.raises(ValueError, match="not contiguous"):
        byteps.push_pull(_Dlpack(values.T, old))


def test_dlpack_says_read_only() -> None:
    values = np.arange(3.0)
    values.flags.writeable = False
    try:
        values.__dlpack__(max_version=(1, 0))
    except (BufferError, TypeError):
        pytest.skip("this NumPy exports no read-only memory by DLPack")
    tensor = _Dlpack(values, old=False)
    np.testing.assert_array_equal(byteps.push_pull(tensor), values)
    with pytest.raises(ValueError, match="read-only"):
        byteps.push_pull(tensor, tensor)


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    for found in (
        byteps.push_pull(values),
        byteps.broadcast(values),
        byteps.allgather(values),
        byteps.alltoall(values, [2])[0],
        byteps.sparse_push_pull(np.array([0, 1]), values, 2)[1],
    ):
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)
    assert byteps.push_pull(values, values, op=byteps.Sum) is values
    with pytest.raises(ValueError, match="not contiguous"):
        byteps.push_pull(values[:, ::2])


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(4, dtype=torch.bfloat16)
    assert byteps.push_pull(values, values) is values
    with pytest.raises(TypeError, match="no bfloat16"):
        byteps.push_pull(values)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ([1.0], TypeError, "buffer protocol or with __dlpack__, not list"),
        (np.arange(8)[::2], ValueError, "not contiguous"),
        (np.asfortranarray(np.ones((2, 3))), ValueError, "not contiguous"),
        (np.arange(3, dtype="uint16"), TypeError, 'format "H"'),
        (np.arange(3, dtype=">f8"), TypeError, "cannot be reduced"),
        (np.array(["text"]), TypeError, "cannot be reduced"),
        (b"abc", ValueError, "read-only"),
    ],
)
def test_what_cannot_be_used_is_an_error(wrong: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        byteps.push_pull(wrong, wrong)


def test_wrong_arguments() -> None:
    values = np.ones(3)
    with pytest.raises(ValueError, match=r"shape \(4,\) and dtype float64, the input \(3,\)"):
        byteps.push_pull(values, np.ones(4))
    with pytest.raises(ValueError, match="dtype float32"):
        byteps.push_pull(values, np.ones(3, "float32"))
    for call in (byteps.push_pull, byteps.allreduce, byteps.reducescatter):
        with pytest.raises(TypeError, match="op=Sum"):
            call(np.ones(3), average=byteps.Sum)
    with pytest.raises(TypeError, match="op=Sum"):
        byteps.sparse_push_pull(np.array([0]), np.ones((1, 2)), 2, average=byteps.Sum)
    with pytest.raises(ValueError, match="average=False"):
        byteps.push_pull(values, average=False, op=byteps.Average)
    with pytest.raises(ValueError, match="timeout"):
        byteps.push_pull(values, timeout=0)
    with pytest.raises(ValueError, match="root_rank is 1"):
        byteps.broadcast(values, 1)


def test_memory_is_let_go_of() -> None:
    values = np.ones(1000)
    gone = weakref.ref(values)
    byteps.push_pull(values, values)
    del values
    gc.collect()
    assert gone() is None
    grows = bytearray(100)
    byteps.push_pull(grows, grows, average=False)
    grows.extend(b"again resizable")


def test_without_numpy() -> None:
    program = """
import sys
sys.modules["numpy"] = None
import byteps
byteps.init()
values = bytearray(b"abc")
assert byteps.push_pull(values, values, average=False) is values
try:
    byteps.push_pull(values)
except ValueError as error:
    assert "give an output" in str(error)
else:
    raise SystemExit("nothing was said")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE)


def test_a_sub_interpreter_is_refused() -> None:
    """Also one that shares the lock of the main interpreter: pybind11 takes that lock for the main one alone."""
    if sys.version_info >= (3, 13):
        pytest.skip("the module that makes them has another name there")
    program = """
import _xxsubinterpreters as interpreters
one = interpreters.create(isolated=False)
interpreters.run_string(one, '''
try:
    import byteps
except ImportError as error:
    print(error, flush=True)
''')
interpreters.destroy(one)
import byteps
byteps.init()
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "cannot be used in a sub-interpreter" in done.stdout
