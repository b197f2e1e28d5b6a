"""Collectives of NumPy arrays through the native module, and what each must bring, computed from all inputs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import byteps
import byteps.session
import numpy as np
from byteps import _native

DTYPES = {
    "int8": _native.INT8,
    "uint8": _native.UINT8,
    "int16": _native.INT16,
    "int32": _native.INT32,
    "int64": _native.INT64,
    "float16": _native.FLOAT16,
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "complex64": _native.COMPLEX64,
    "complex128": _native.COMPLEX128,
    "bool": _native.BOOL,
}


def native() -> _native.Session:
    return byteps.session.current_session().native


def operation(kind: int, name: str | None, array: np.ndarray, **options: Any) -> _native.Collective:
    """The arguments of a collective of this array, whose result is the library's memory unless `output` is given."""
    output = options.pop("output", None)
    if output is not None:
        options.update(output=output.ctypes.data, output_bytes=output.nbytes)
    return _native.Collective(
        kind, name, dtype=DTYPES[array.dtype.name], shape=list(array.shape), input=array.ctypes.data, **options
    )


def start(kind: int, name: str | None, array: np.ndarray, **options: Any) -> _native.Request:
    return native().collective(operation(kind, name, array, **options), buffers=(array, options.get("output")))


def taken(request: _native.Request, dtype: np.dtype, index: int = 0) -> np.ndarray:
    """The result of a request, once it has ended. It stays valid as long as the array. Without one: an empty array."""
    request.wait()
    result = request.result(index)
    if not len(result):
        return np.empty(result.shape or (0,), dtype=dtype)
    return np.frombuffer(result, dtype=dtype).reshape(result.shape)


def call(kind: int, name: str | None, array: np.ndarray, **options: Any) -> np.ndarray:
    return taken(start(kind, name, array, **options), array.dtype)


def _complex_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NumPy's own may round once where the formula rounds twice."""
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


def reduced(op: int, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The fold of docs/determinism.md, one level."""
    if inputs[0].dtype == np.bool_:
        both = op in (_native.MIN, _native.PRODUCT, _native.BIT_AND)
        fold = np.logical_xor if op == _native.BIT_XOR else np.logical_and if both else np.logical_or
    else:
        fold = {
            _native.SUM: np.add,
            _native.AVERAGE: np.add,
            _native.MIN: np.minimum,
            _native.MAX: np.maximum,
            _native.PRODUCT: np.multiply,
            _native.BIT_AND: np.bitwise_and,
            _native.BIT_OR: np.bitwise_or,
            _native.BIT_XOR: np.bitwise_xor,
        }[op]
    if inputs[0].dtype.kind == "c" and op == _native.PRODUCT:
        fold = _complex_product
    dtype = inputs[0].dtype
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    total = inputs[0].astype(wide)
    with np.errstate(all="ignore"):
        for other in inputs[1:]:
            total = fold(total, other.astype(wide))
        if op == _native.AVERAGE:
            # Of complex numbers both parts are divided.
            total = np.ascontiguousarray(total)
            parts = total.view(total.real.dtype) if dtype.kind == "c" else total
            quotients = parts // len(inputs) if dtype.kind in "iu" else parts / parts.dtype.type(len(inputs))
            total = quotients.astype(parts.dtype).view(wide).reshape(total.shape)
        return np.asarray(total).astype(dtype)


def even_rows(rows: int, ranks: int) -> list[int]:
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
