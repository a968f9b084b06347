"""cublasLt's arithmetic in NumPy: the same descriptions and addresses, so that a mistake in a layout shows.

`EmulatedCublasLt` stands for `CublasLt` as the `products` of a backend whose arrays lie in the host's memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.backends.cuda.libs.blas import Compute, Epilogue, Matrix, Memory, Product
from ampkit.base.dtypes import bfloat16, float4_e2m1fn_x2, float16, float32, float64, int8, int32, uint8

from . import emulated_cupy, narrow_operands
from .streams import perform

_FITTING = {(d, d) for d in (float16, bfloat16, float32, float64)} | {
    (float16, float32),
    (bfloat16, float32),
    (int8, int32),
}


class EmulatedCublasLt:
    """Runs products where their operands lie. ran: those that it did; refuse: which it has no algorithm for.

    version, capability: of the library and of the card whose units it stands for.
    """

    version, capability = 131000, (9, 0)

    def __init__(self) -> None:
        self.ran: list[Product] = []
        self.refused: dict[Product, int] = {}
        self.refuse: Callable[[Product], bool] = lambda product: False

    def unavailable_reason(self) -> str:
        return ""

    def run(self, device: int, product: Product, memory: Memory, alpha: float = 1.0, beta: float = 0.0) -> bool:
        check(product, memory)
        if product.scales is not None:
            narrow_operands.check(product, memory, self.capability, self.version)
        if self.refuse(product):
            self.refused[product] = 15
            return False
        self.ran.append(product)
        reads, writes = operands(product, memory, beta)
        perform(lambda: self._multiply(product, memory, alpha, beta), reads, writes)
        return True

    def _multiply(self, product: Product, memory: Memory, alpha: float, beta: float) -> None:
        a, b = factors(product, memory)
        with np.errstate(all="ignore"):
            found = alpha * (a @ b) if alpha else np.zeros(product.d[1:3])  # as BLAS: NaN and all is left out
            if beta != 0:
                found = found + beta * view(product.c, memory.c).astype(np.float64)
            found = _finish(product, memory, a, b, found)
            view(product.d, memory.d)[...] = rounded(found, product)


def factors(product: Product, memory: Memory) -> Any:
    """The values of op(a) and of op(b), in float64: [batch, rows, columns]."""
    if product.scales is not None:
        return narrow_operands.values(product, memory)
    given = zip(product[:2], memory[:2], product.transposed, strict=True)
    return [operand(transposed(view(m, at), t), product.compute) for m, at, t in given]


def operands(product: Product, memory: Memory, beta: float) -> tuple[list[Any], list[Any]]:
    """The device's memory that a product reads, and what it writes."""
    a, b, c, d = (emulated_cupy.array_at(_bytes(m, at)) for m, at in zip(product[:4], memory[:4], strict=True))
    scales = [] if product.scales is None else narrow_operands.scale_arrays(product, memory)
    length = product.d.columns if product.epilogue is Epilogue.BGRADB else product.d.rows
    vector = (
        [emulated_cupy.array_at(view(Matrix(product.d.dtype, length, 1, length), memory.bias))] if memory.bias else []
    )
    beside = Matrix(product.d.dtype, product.d.rows, product.d.columns, product.aux_leading)
    aux = [emulated_cupy.array_at(view(beside, memory.aux))] if product.epilogue.has_aux else []
    given = [a, b, *map(emulated_cupy.array_at, scales), *([c] if beta else [])]
    if product.epilogue is Epilogue.BGRADB:
        return given, [d, *vector]
    return ([*given, *vector, *aux], [d]) if product.epilogue is Epilogue.DGELU else ([*given, *vector], [d, *aux])


def check(product: Product, memory: Memory) -> None:
    """Hold a description to what cublasLt asks of one."""
    a, b, c, d = product[:4]
    m, k = a[1:3][::-1] if product.transposed[0] else a[1:3]
    inner, n = b[1:3][::-1] if product.transposed[1] else b[1:3]
    known = (a.dtype, d.dtype) in _FITTING and a.dtype == b.dtype
    assert c.dtype == d.dtype and (product.scales is not None or known)
    assert k == inner and (m, n) == d[1:3] == c[1:3] and min(m, n, k) > 0
    assert a.batch == b.batch == c.batch == d.batch
    assert all(each.leading >= each.rows and each.stride >= 0 for each in (a, b, c, d))
    assert d.batch == 1 or d.stride >= d.leading * (d.columns - 1) + d.rows  # none writes where another does
    double = a.dtype == float64
    assert double == (product.compute is Compute.FLOAT64) and (
        product.compute is not Compute.TF32 or a.dtype == float32
    )
    assert (a.dtype == int8) == (product.compute is Compute.INT32)
    if a.dtype == int8:  # IMMA units: "TN", all of it in multiples of 4
        assert product.transposed == (True, False) and product.epilogue is Epilogue.NONE
        assert not (m % 4 or k % 4 or any(each.leading % 4 for each in (a, b, d)))
        assert all(nbytes >= 4 for nbytes in product.alignment[:4])
    for address, nbytes in zip(memory, product.alignment, strict=True):
        assert (address and address % nbytes == 0) if nbytes else address == 0
    assert bool(memory.bias) == product.epilogue.has_bias


def _bytes(matrix: Matrix, address: int) -> np.ndarray[Any, Any]:
    """The memory of a matrix; of one below 16 bits, whose dtype CuPy does not have, as bytes."""
    if matrix.dtype.kind == "V" and matrix.dtype.itemsize == 1:
        rows = matrix.rows // 2 if matrix.dtype == float4_e2m1fn_x2 else matrix.rows
        return view(Matrix(uint8, rows, matrix.columns, rows), address)
    return view(matrix, address)


def view(matrix: Matrix, address: int) -> np.ndarray[Any, Any]:
    """[batch, rows, columns], the memory itself."""
    size, last = matrix.dtype.itemsize, (matrix.batch - 1) * matrix.stride + (matrix.columns - 1) * matrix.leading
    flat = np.frombuffer((ctypes.c_char * ((last + matrix.rows) * size)).from_address(address), matrix.dtype)
    strides = (matrix.stride * size, size, matrix.leading * size)
    return np.lib.stride_tricks.as_strided(flat, (matrix.batch, matrix.rows, matrix.columns), strides)


def transposed(array: np.ndarray[Any, Any], turn: bool) -> np.ndarray[Any, Any]:
    return array.swapaxes(1, 2) if turn else array


def operand(array: np.ndarray[Any, Any], compute: Compute) -> np.ndarray[Any, Any]:
    """The values as they are multiplied, in float64; TF32 keeps 10 bits after the point."""
    if compute is Compute.TF32:
        bits = array.view(np.uint32) if array.flags.c_contiguous else np.ascontiguousarray(array).view(np.uint32)
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
        array = np.where(np.isfinite(array), rounded.view(np.float32), array)
    return array.astype(np.float64)


def rounded(values: np.ndarray[Any, Any], product: Product) -> np.ndarray[Any, Any]:
    exact = product.compute in (Compute.FLOAT64, Compute.INT32)
    wide = values if exact else values.astype(np.float32)
    return wide.astype(product.d.dtype)


def _with_aux(product: Product, memory: Memory, found: Any) -> Any:
    d = product.d
    assert product.aux_leading % 8 == 0 and product.aux_leading >= d.rows
    aux = view(Matrix(d.dtype, d.rows, d.columns, product.aux_leading), memory.aux)
    if product.epilogue is Epilogue.DGELU:
        return found * _gelu(aux.astype(np.float64))[1]
    if product.epilogue is Epilogue.GELU_AUX_BIAS:
        found = found + view(Matrix(d.dtype, d.rows, 1, d.rows), memory.bias)[0].astype(np.float64)
    elif product.epilogue is not Epilogue.GELU_AUX:
        raise NotImplementedError(repr(product.epilogue))
    aux[...] = rounded(found, product)
    return _gelu(found)[0]


def _gelu(x: Any) -> tuple[Any, Any]:
    """Hendrycks & Gimpel 2016, arXiv:1606.08415, eq. 2, and its gradient."""
    rate, cubic = math.sqrt(2 / math.pi), 0.044715
    t = np.tanh(rate * (x + cubic * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * rate * (1 + 3 * cubic * x * x)


def _finish(product: Product, memory: Memory, a: Any, b: Any, found: Any) -> Any:
    epilogue, d = product.epilogue, product.d
    if epilogue is Epilogue.NONE:
        return found
    if epilogue.has_aux and d.batch == 1:
        return _with_aux(product, memory, found)
    length = d.columns if epilogue is Epilogue.BGRADB else d.rows
    vector = view(Matrix(d.dtype, length, 1, length), memory.bias)[0, :, 0]
    if epilogue is Epilogue.BIAS:
        return found + vector.astype(np.float64)[:, None]
    if epilogue is Epilogue.BGRADB and d.batch == 1:
        vector[...] = rounded(b.sum(1)[0], product)
        return found
    raise NotImplementedError(f"{epilogue!r} of {d.batch}")
