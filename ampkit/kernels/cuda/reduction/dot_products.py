"""Matrix products inside reference implementations, such as float32 attention, by cublasLt, which graphs capture."""

from __future__ import annotations

from ampkit.backends.cuda.libs.gemm import fits, multiply, product
from ampkit.base.dtypes import Array
from ampkit.base.errors import UnsupportedError
from ampkit.ops.reduction.dot_products import matmul_arrays


@matmul_arrays.on("cuda", when=lambda a, b, out=None: fits(a, b, out) and a.size > 0 and b.size > 0)
def matmul_arrays_cuda(a: Array, b: Array, out: Array | None = None) -> Array:
    if out is None:
        return product(a, b, a.dtype)
    if not multiply(a, b, out):
        raise UnsupportedError
    return out
